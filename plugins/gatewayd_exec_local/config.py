"""Settings of ``[executor.local]``."""

from gatewayd_hooks.strategy import StrategyConfig


class LocalConfig(StrategyConfig):
    """No settings."""
