"""Settings of ``[eviction.lfu]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class LfuConfig(StrategyConfig):
    """No settings."""
