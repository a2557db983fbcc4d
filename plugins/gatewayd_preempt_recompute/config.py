"""Settings of ``[preemption.recompute]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class RecomputeConfig(StrategyConfig):
    """No settings."""
