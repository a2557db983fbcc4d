"""Settings of ``[prefix_cache.radix]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class RadixConfig(StrategyConfig):
    """No settings: the page size is the engine's."""
