"""Settings of ``[routes.NAME.cost]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


def _quality(name: str) -> float:
    value: float = setting(
        0.0, reload="restart", ge=0, le=1, doc=f"Minimum quality of a target for {name} requests."
    )
    return value


def _seconds(name: str, default: float) -> float:
    value: float = setting(
        default,
        reload="restart",
        gt=0,
        le=86_400,
        doc=f"Maximum wait in a target's queue for {name} requests, in seconds.",
    )
    return value


class CostRouteConfig(StrategyConfig):
    """What each priority class asks for, and how an answer's length is estimated."""

    realtime_quality: float = _quality("realtime")
    standard_quality: float = _quality("standard")
    batch_quality: float = _quality("batch")
    realtime_seconds: float = _seconds("realtime", 1.0)
    standard_seconds: float = _seconds("standard", 10.0)
    batch_seconds: float = _seconds("batch", 3600.0)
    output_tokens: int = setting(
        256,
        reload="restart",
        ge=1,
        doc="Expected tokens of an answer, at least 1; a smaller `max_tokens` of the request "
        "takes its place.",
    )
