"""Settings of ``[scheduler.priority]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class PriorityConfig(StrategyConfig):
    """Weights of the classes; only their ratios matter."""

    realtime: float = setting(
        10.0,
        reload="hot",
        gt=0,
        le=1e6,
        doc="Weight of class realtime in the division of tokens, above 0 and up to 1000000.",
    )
    standard: float = setting(
        5.0,
        reload="hot",
        gt=0,
        le=1e6,
        doc="Weight of class standard in the division of tokens, above 0 and up to 1000000.",
    )
    batch: float = setting(
        1.0,
        reload="hot",
        gt=0,
        le=1e6,
        doc="Weight of class batch in the division of tokens, above 0 and up to 1000000.",
    )
