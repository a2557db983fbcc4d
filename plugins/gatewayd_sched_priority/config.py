"""Settings of ``[scheduler.priority]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class PriorityConfig(StrategyConfig):
    """Shares of the classes; only their ratios matter."""

    realtime: float = setting(
        10.0, reload="hot", gt=0, le=1e6, doc="Share of the tokens of class realtime."
    )
    standard: float = setting(
        5.0, reload="hot", gt=0, le=1e6, doc="Share of the tokens of class standard."
    )
    batch: float = setting(
        1.0, reload="hot", gt=0, le=1e6, doc="Share of the tokens of class batch."
    )
