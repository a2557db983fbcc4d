"""Settings of ``[eviction.lru]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class LruConfig(StrategyConfig):
    """Least recently used has nothing to set."""
