"""Settings of ``[eviction.retention]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class RetentionConfig(StrategyConfig):
    """No settings: requests and operators control retention."""
