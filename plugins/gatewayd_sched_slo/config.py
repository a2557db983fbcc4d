"""Settings of ``[scheduler.slo]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting

_DOC = "Seconds after which a {} request is wanted to have begun, if nobody said."


class SloConfig(StrategyConfig):
    """When a first token is late, and what becomes of those that are."""

    realtime_seconds: float = setting(
        1.0, reload="hot", gt=0, le=86_400, doc=_DOC.format("realtime")
    )
    standard_seconds: float = setting(
        10.0, reload="hot", gt=0, le=86_400, doc=_DOC.format("standard")
    )
    batch_seconds: float = setting(600.0, reload="hot", gt=0, le=864_000, doc=_DOC.format("batch"))
    late_share: float = setting(
        0.1,
        reload="hot",
        gt=0,
        lt=1,
        doc="Share of the prompt tokens for requests that are late already, the oldest first, "
        "while others can still be in time.",
    )
    margin: float = setting(
        1.25,
        reload="hot",
        ge=1,
        le=10,
        doc="By which the time that a prompt is expected to take is multiplied.",
    )
    victims: int = setting(
        4,
        reload="hot",
        ge=0,
        le=256,
        doc="Most batch sequences without a deadline that give way in a step to realtime requests "
        "which find no place; 0 is none.",
    )
