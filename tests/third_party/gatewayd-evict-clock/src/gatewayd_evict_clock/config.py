"""Settings of ``[eviction.clock]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class ClockSettings(StrategyConfig):
    """How often and for how long a page is spared."""

    chances: int = setting(
        2, reload="restart", ge=0, le=100, doc="Rounds that a page is spared, one for each hit."
    )
    ttl_seconds: float = setting(
        600.0, reload="restart", gt=0, doc="Seconds after its last use at which a page goes first."
    )
