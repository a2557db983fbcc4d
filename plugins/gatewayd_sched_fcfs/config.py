"""Settings of ``[scheduler.fcfs]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class FcfsConfig(StrategyConfig):
    """First come, first served."""

    max_prefill_chunk: int = setting(
        0,
        reload="hot",
        ge=0,
        doc="Most tokens of one prompt computed in a step; 0 is the whole step's budget.",
    )
    prefix_patience: float = setting(
        0.0,
        reload="hot",
        ge=0,
        doc="Seconds for which a waiting request may be overtaken by requests of whose prompt more "
        "is cached; 0 is never.",
    )
