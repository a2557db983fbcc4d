"""Settings of ``[scheduler.slo]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting

_DOC = (
    "Deadline of the first token of a {} request that sets none, in seconds, above 0 and up to {}."
)


class SloConfig(StrategyConfig):
    """Default deadlines, and treatment of late requests."""

    realtime_seconds: float = setting(
        1.0, reload="hot", gt=0, le=86_400, doc=_DOC.format("realtime", 86400)
    )
    standard_seconds: float = setting(
        10.0, reload="hot", gt=0, le=86_400, doc=_DOC.format("standard", 86400)
    )
    batch_seconds: float = setting(
        600.0, reload="hot", gt=0, le=864_000, doc=_DOC.format("batch", 864000)
    )
    late_share: float = setting(
        0.1,
        reload="hot",
        gt=0,
        lt=1,
        doc=(
            "Fraction of prompt tokens, above 0 and below 1, for requests that miss their "
            "deadline anyway, oldest first, while others can still meet theirs."
        ),
    )
    margin: float = setting(
        1.25,
        reload="hot",
        ge=1,
        le=10,
        doc="Factor, from 1 to 10, by which the expected duration of a prefill is multiplied.",
    )
    victims: int = setting(
        4,
        reload="hot",
        ge=0,
        le=256,
        doc=(
            "Maximum number of batch sequences without a deadline, from 0 to 256, that are "
            "preempted in a step for realtime requests without a free batch row or pages; 0 "
            "disables this."
        ),
    )
