"""Why a request went no further, and the ledger of one that no engine was sent."""

from __future__ import annotations

import time

from gatewayd.errors import MISTAKE, ClientGone, GatewayError, InternalError
from gatewayd.tracing.request_trace import RequestOutline, RequestTrace
from gatewayd.tracing.time_ledger import TimeLedger, Why
from gatewayd_hooks.scheduling import Priority

CLIENT_GONE = Why(499, "client_gone", "its client left, or it was cancelled, before its end")


def is_refusal(error: GatewayError) -> bool:
    """Whether the gateway had no room or no engine for it, and not a fault of its own words."""
    return error.status == 429 or error.status >= 500


def why_of(error: GatewayError) -> Why:
    """What is kept of an error; a sentence about the request itself may quote it, and is not."""
    return Why(error.status, error.code, error.message if is_refusal(error) else "")


def mistake_behind(exception: BaseException | None) -> GatewayError | None:
    """What a request failed by whose engine had not ended, if its client cannot help it."""
    if isinstance(exception, GatewayError):
        return exception if exception.status >= 500 else None
    is_gone = isinstance(exception, ClientGone | OSError)
    return InternalError(MISTAKE) if isinstance(exception, Exception) and not is_gone else None


def refused(
    trail: RequestTrace, request_id: str, endpoint: str, tenant: str, why: Why
) -> TimeLedger:
    """Where its time went until now.

    Args:
        trail: of the request; says what it had come to.
        request_id: the gateway's own.
        endpoint: the route.
        tenant: of its key.
        why: it goes no further.
    """
    now, asked = time.monotonic(), trail.asked
    if asked is None:
        asked = RequestOutline(Priority.STANDARD, prompt_tokens=0, num_choices=1)
    return TimeLedger(
        request_id=request_id,
        answered_id=trail.answered_id,
        endpoint=endpoint,
        tenant=tenant,
        priority=asked.priority,
        outcome="abort" if why is CLIENT_GONE else "refused",
        prompt_tokens=asked.prompt_tokens,
        cached_tokens=0,
        completion_tokens=0,
        num_choices=asked.num_choices,
        num_preemptions=0,
        unix=time.time() - (now - trail.arrival),
        arrival=trail.arrival,
        spans=trail.spans,
        submitted=now,
        handed=now,
        stretches=(),
        computed=now,
        first=None,
        last=None,
        end=now,
        why=why,
    )
