"""Settings of ``[eviction.lfu]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class LfuConfig(StrategyConfig):
    """Least frequently used has nothing to set."""
