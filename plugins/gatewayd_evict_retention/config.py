"""Settings of ``[eviction.retention]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class RetentionConfig(StrategyConfig):
    """Requests and operators say what is kept; there is nothing to set."""
