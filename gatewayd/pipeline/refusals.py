"""Reasons of refused requests, and the latency record of one that reached no engine."""

from __future__ import annotations

import time

from gatewayd.errors import MISTAKE, ClientGone, GatewayError, InternalError
from gatewayd.tracing.latency_record import EndReason, LatencyRecord
from gatewayd.tracing.request_trace import RequestOutline, RequestTrace
from gatewayd_hooks.scheduling import Priority

CLIENT_GONE = EndReason(499, "client_gone", "the client disconnected or the request was cancelled")


def is_refusal(error: GatewayError) -> bool:
    """Whether the gateway lacked capacity or engines; false for invalid requests."""
    return error.status == 429 or error.status >= 500


def reason_for(error: GatewayError) -> EndReason:
    """Return the reason to record; messages that may quote request content are omitted."""
    return EndReason(error.status, error.code, error.message if is_refusal(error) else "")


def server_error_behind(exception: BaseException | None) -> GatewayError | None:
    """Return the server error behind an exception; None for client errors and disconnects."""
    if isinstance(exception, GatewayError):
        return exception if exception.status >= 500 else None
    # `OSError`: the connection broke while the response was written.
    is_gone = isinstance(exception, ClientGone | OSError)
    return InternalError(MISTAKE) if isinstance(exception, Exception) and not is_gone else None


def refused(
    trace: RequestTrace, request_id: str, endpoint: str, tenant: str, why: EndReason
) -> LatencyRecord:
    """Build the latency record of a refused request.

    Args:
        trace: of the request, with its outline if it was already parsed.
        request_id: the gateway's own.
        endpoint: the route.
        tenant: of its key.
        why: the reason of the refusal.
    """
    now, asked = time.monotonic(), trace.asked
    if asked is None:
        asked = RequestOutline(Priority.STANDARD, prompt_tokens=0, num_choices=1)
    return LatencyRecord(
        request_id=request_id,
        answered_id=trace.answered_id,
        endpoint=endpoint,
        tenant=tenant,
        priority=asked.priority,
        outcome="abort" if why is CLIENT_GONE else "refused",
        prompt_tokens=asked.prompt_tokens,
        cached_tokens=0,
        completion_tokens=0,
        num_choices=asked.num_choices,
        num_preemptions=0,
        unix=time.time() - (now - trace.arrival),
        arrival=trace.arrival,
        spans=trace.spans,
        submitted=now,
        notified=now,
        intervals=(),
        computed=now,
        first=None,
        last=None,
        end=now,
        why=why,
        route=None if trace.route is None else trace.route.record,
        model=trace.model,
    )
