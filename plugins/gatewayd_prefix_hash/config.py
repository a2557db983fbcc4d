"""Settings of ``[prefix_cache.hash]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class HashConfig(StrategyConfig):
    """No settings: the page size is the engine's."""
