"""Conversion of latency records to the admin API's response types."""

from __future__ import annotations

from gatewayd.tracing.causes import CAUSES
from gatewayd.tracing.latency_record import EndReason, LatencyRecord
from gatewayd.tracing.route_record import RouteRecord
from gatewayd.wire.requests import AttemptPart, CausePart, Explanation, RoutePart, WhyPart
from gatewayd_hooks.scheduling import Priority


def explanation(record: LatencyRecord) -> Explanation:
    """Convert a record to the full explanation of a request."""
    totals = record.totals()
    return Explanation(
        id=record.answered_id,
        request_id=record.request_id,
        endpoint=record.endpoint,
        model=record.model,
        tenant=record.tenant,
        priority=Priority(record.priority).name.lower(),
        outcome=record.outcome,
        why=_why(record.why),
        arrived=record.unix,
        ms=1000 * record.seconds,
        ttft_ms=_ms(record.ttft),
        tpot_ms=_ms(record.tpot),
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        completion_tokens=record.completion_tokens,
        preemptions=record.num_preemptions,
        engine_ms=1000 * record.engine_seconds,
        verdict=verdict(record),
        causes={cause: 1000 * seconds for cause, seconds in totals.items()},
        parts=[
            CausePart(part.cause, _ms(part.begin), 1000 * part.seconds, part.strategy)
            for part in record.parts()
        ],
        route=None if record.route is None else _route(record.route),
    )


def row(record: LatencyRecord) -> dict[str, object]:
    """Convert a record to a row of the request list."""
    cause = next(iter(record.totals()), "")
    return {
        "id": record.answered_id,
        "request_id": record.request_id,
        "endpoint": record.endpoint,
        "model": record.model,
        "priority": Priority(record.priority).name.lower(),
        "outcome": record.outcome,
        "error": "" if record.why is None else record.why.code,
        "arrived": record.unix,
        "ms": 1000 * record.seconds,
        "ttft_ms": _ms(record.ttft),
        "cause": cause,
        "strategy": record.dominant_strategy(cause),
    }


def verdict(record: LatencyRecord) -> str:
    """Summarize why the request was not answered and the cause that took most of its time."""
    why = record.why
    if why is None:
        return _most(record)
    what = f"{record.outcome}, {why.status} {why.code}"
    return "; ".join([f"{what}: {why.message}" if why.message else what, _most(record)])


def _most(record: LatencyRecord) -> str:
    totals = record.totals()
    if not totals:
        return "it took no time"
    cause, seconds = next(iter(totals.items()))
    strategy = record.dominant_strategy(cause)
    by = f" ({strategy})" if strategy else ""
    # Never a division by zero: each cause took some of the time.
    share = round(100 * seconds / record.seconds)
    return f"{share} % of {1000 * record.seconds:.1f} ms: {CAUSES[cause]}{by}"


def _route(route: RouteRecord) -> RoutePart:
    return RoutePart(
        route=route.route,
        strategy=route.strategy,
        reason=route.reason,
        order=list(route.order),
        scores=dict(route.scores),
        attempts=[
            AttemptPart(
                target=attempt.target,
                outcome=attempt.outcome,
                ms=1000 * attempt.seconds,
                detail=attempt.detail,
                score=attempt.score,
                prompt_tokens=attempt.prompt_tokens,
                completion_tokens=attempt.completion_tokens,
            )
            for attempt in route.attempts
        ],
    )


def _why(why: EndReason | None) -> WhyPart | None:
    return None if why is None else WhyPart(why.status, why.code, why.message)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
