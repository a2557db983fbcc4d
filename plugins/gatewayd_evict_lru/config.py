"""Settings of ``[eviction.lru]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class LruConfig(StrategyConfig):
    """No settings."""
