"""Metrics record and latency record of an ended request."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gatewayd.engines.api import EngineRequest
from gatewayd.metrics.requests import EndedRequest
from gatewayd.pipeline.choice import Choice
from gatewayd.pipeline.work import Work
from gatewayd.tracing.latency_record import EndReason, LatencyRecord
from gatewayd.tracing.request_trace import RequestTrace
from gatewayd.tracing.timeline import Timeline


def account(
    request: EngineRequest,
    choices: Sequence[Choice],
    *,
    outcome: str,
    arrival: float,
    end: float,
) -> EndedRequest:
    """Summarize an ended prompt and its choices for the metrics.

    Args:
        request: as it was sent to the engine.
        choices: of this prompt.
        outcome: of the whole request, which may have other prompts.
        arrival: time of the request's arrival.
        end: time at which its answer was complete.
    """
    counts = [choice.completion_tokens for choice in choices]
    return EndedRequest(
        # A prompt that was answered has its own reason; the request's may be that of another one.
        outcome=outcome if outcome in ("error", "abort") else reason(choices),
        prompt_tokens=len(request.prompt),
        cached_tokens=choices[0].cached_tokens,
        completion_tokens=sum(counts),
        longest=max(counts),
        # Some models finish immediately, without a token.
        is_prefilled=any([choice.first is not None or choice.is_done for choice in choices]),
        is_corrupted=any([choice.is_corrupted for choice in choices]),
        num_preemptions=sum([choice.num_preemptions for choice in choices]),
        num_choices=len(choices),
        max_tokens=request.params.max_tokens,
        queue_seconds=choices[0].queue_seconds,
        arrival=arrival,
        first=first_token(choices),
        last=max([choice.last for choice in choices if choice.last is not None], default=None),
        end=end,
    )


def build_latency_record(
    work: Work,
    choices: Sequence[Choice],
    timelines: Sequence[Timeline],
    trace: RequestTrace | None,
    *,
    outcome: str,
    why: EndReason | None,
    submitted: float,
    notified: float,
    end: float,
) -> LatencyRecord:
    """Build the latency record of a request.

    Args:
        work: the request.
        choices: of all prompts.
        timelines: of the same choices.
        trace: spans from the arrival until the engines; None if it did not arrive over HTTP.
        outcome: ``stop``, ``length``, ``abort``, ``error`` or ``running``.
        why: what ended the request, if it was not answered.
        submitted: time at which it was sent to the engines.
        notified: time at which request observers had been notified of its admission.
        end: time at which its answer was complete.
    """
    answered_id = work.request_id if trace is None else trace.answered_id
    if trace is not None and trace.arrival > work.arrival:
        trace = None  # a different clock, or the trace of another request
    ends = [end if timeline.end is None else timeline.end for timeline in timelines]
    # The choice that ended last determines when the answer was complete.
    last = max(range(len(ends)), key=ends.__getitem__, default=None)
    request = work.requests[0]
    return LatencyRecord(
        request_id=work.request_id,
        answered_id=answered_id,
        endpoint=work.endpoint,
        tenant=request.tenant,
        priority=request.priority,
        outcome=outcome,
        prompt_tokens=sum([len(one.prompt) for one in work.requests]),
        # The first choice of each prompt: what the others found cached, the first has computed.
        cached_tokens=sum([choice.cached_tokens for choice in choices[:: work.num_choices]]),
        completion_tokens=sum([choice.completion_tokens for choice in choices]),
        num_choices=len(choices),
        num_preemptions=sum([choice.num_preemptions for choice in choices]),
        # Wall-clock time of the arrival.
        unix=time.time() - (end - work.arrival),
        arrival=work.arrival if trace is None else trace.arrival,
        spans=() if trace is None else trace.spans,
        submitted=submitted,
        notified=notified,
        intervals=() if last is None else timelines[last].intervals(end),
        computed=None if last is None else ends[last],
        first=first_token(choices),
        last=max([choice.last for choice in choices if choice.last is not None], default=None),
        end=end,
        why=why,
    )


def reason(choices: Sequence[Choice]) -> str:
    """Return the outcome of answered choices: ``length`` or ``stop``."""
    return "length" if "length" in [choice.finish_reason for choice in choices] else "stop"


def first_token(choices: Sequence[Choice]) -> float | None:
    """Return the time of the first token of any choice; None without tokens."""
    return min([choice.first for choice in choices if choice.first is not None], default=None)
