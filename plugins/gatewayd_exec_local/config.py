"""Settings of ``[executor.local]``."""

from gatewayd_hooks.strategy import StrategyConfig


class LocalConfig(StrategyConfig):
    """Engines as child processes; there is nothing to set."""
