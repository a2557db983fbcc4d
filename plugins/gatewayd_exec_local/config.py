"""Settings of ``[executor.local]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class LocalConfig(StrategyConfig):
    """Engines as child processes."""

    nice: int = setting(
        0,
        reload="restart",
        ge=0,
        le=19,
        doc="Added to the engines' niceness; a few steps keep the gateway prompt on a full machine.",
    )
