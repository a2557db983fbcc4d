"""Settings of ``[residency.lru]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class LruResidencyConfig(StrategyConfig):
    """No settings."""
