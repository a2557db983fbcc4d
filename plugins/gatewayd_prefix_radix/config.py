"""Settings of ``[prefix_cache.radix]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class RadixConfig(StrategyConfig):
    """The tree has nothing to set: its page size is the engine's."""
