"""Conversion of time ledgers to the admin API's response types."""

from __future__ import annotations

from gatewayd.tracing.causes import CAUSES
from gatewayd.tracing.time_ledger import EndReason, TimeLedger
from gatewayd.wire.requests import CausePart, Explanation, WhyPart
from gatewayd_hooks.scheduling import Priority


def explanation(ledger: TimeLedger) -> Explanation:
    """Convert a ledger to the full explanation of a request."""
    totals = ledger.totals()
    return Explanation(
        id=ledger.answered_id,
        request_id=ledger.request_id,
        endpoint=ledger.endpoint,
        tenant=ledger.tenant,
        priority=Priority(ledger.priority).name.lower(),
        outcome=ledger.outcome,
        why=_why(ledger.why),
        arrived=ledger.unix,
        ms=1000 * ledger.seconds,
        ttft_ms=_ms(ledger.ttft),
        tpot_ms=_ms(ledger.tpot),
        prompt_tokens=ledger.prompt_tokens,
        cached_tokens=ledger.cached_tokens,
        completion_tokens=ledger.completion_tokens,
        preemptions=ledger.num_preemptions,
        engine_ms=1000 * ledger.engine_seconds,
        verdict=verdict(ledger),
        causes={cause: 1000 * seconds for cause, seconds in totals.items()},
        parts=[
            CausePart(part.cause, _ms(part.begin), 1000 * part.seconds, part.strategy)
            for part in ledger.parts()
        ],
    )


def row(ledger: TimeLedger) -> dict[str, object]:
    """Convert a ledger to a row of the request list."""
    cause = next(iter(ledger.totals()), "")
    return {
        "id": ledger.answered_id,
        "request_id": ledger.request_id,
        "endpoint": ledger.endpoint,
        "priority": Priority(ledger.priority).name.lower(),
        "outcome": ledger.outcome,
        "error": "" if ledger.why is None else ledger.why.code,
        "arrived": ledger.unix,
        "ms": 1000 * ledger.seconds,
        "ttft_ms": _ms(ledger.ttft),
        "cause": cause,
        "strategy": ledger.dominant_strategy(cause),
    }


def verdict(ledger: TimeLedger) -> str:
    """Summarize why the request was not answered and the cause that took most of its time."""
    why = ledger.why
    if why is None:
        return _most(ledger)
    what = f"{ledger.outcome}, {why.status} {why.code}"
    return "; ".join([f"{what}: {why.message}" if why.message else what, _most(ledger)])


def _most(ledger: TimeLedger) -> str:
    totals = ledger.totals()
    if not totals:
        return "it took no time"
    cause, seconds = next(iter(totals.items()))
    strategy = ledger.dominant_strategy(cause)
    by = f" ({strategy})" if strategy else ""
    share = round(100 * seconds / ledger.seconds)
    return f"{share} % of {1000 * ledger.seconds:.1f} ms: {CAUSES[cause]}{by}"


def _why(why: EndReason | None) -> WhyPart | None:
    return None if why is None else WhyPart(why.status, why.code, why.message)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
