"""Settings of ``[prefix_cache.hash]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class HashConfig(StrategyConfig):
    """The hash chain has nothing to set: its page size is the engine's."""
