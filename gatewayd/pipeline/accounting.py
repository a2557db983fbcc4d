"""Metrics record and latency record of an ended request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from gatewayd.engines.api import EngineRequest
from gatewayd.metrics.requests import EndedRequest
from gatewayd.pipeline.choice import Choice
from gatewayd.pipeline.work import Work
from gatewayd.tracing.latency_record import EndReason, LatencyRecord
from gatewayd.tracing.request_trace import RequestTrace
from gatewayd.tracing.route_record import RouteRecord
from gatewayd.tracing.timeline import Timeline
from gatewayd_hooks.events import RequestFinished


class ChoiceSums(NamedTuple):
    """Sums over choices, of one prompt or of a whole request.

    Attributes:
        completion_tokens: of all of them.
        longest: tokens of the longest.
        num_preemptions: of all of them.
        is_prefilled: whether any has begun its answer, or has ended without a token.
        is_corrupted: whether any failed because of NaN or infinite logits.
        first: time of the first token of any; None without tokens.
        last: time of the latest token of any; None without tokens.
    """

    completion_tokens: int
    longest: int
    num_preemptions: int
    is_prefilled: bool
    is_corrupted: bool
    first: float | None
    last: float | None


def sums_of(choices: Sequence[Choice]) -> ChoiceSums:
    """Sum over choices, in one pass: it runs at the end of each request."""
    completion = longest = preemptions = 0
    is_prefilled = is_corrupted = False
    first = last = None
    for choice in choices:
        tokens = choice.completion_tokens
        completion += tokens
        if tokens > longest:
            longest = tokens
        preemptions += choice.num_preemptions
        is_corrupted |= choice.is_corrupted
        began, latest = choice.first, choice.last
        # Some models finish immediately, without a token.
        is_prefilled |= began is not None or choice.is_done
        if began is not None and (first is None or began < first):
            first = began
        if latest is not None and (last is None or latest > last):
            last = latest
    return ChoiceSums(completion, longest, preemptions, is_prefilled, is_corrupted, first, last)


def account(
    request: EngineRequest,
    choices: Sequence[Choice],
    sums: ChoiceSums,
    *,
    outcome: str,
    arrival: float,
    end: float,
) -> EndedRequest:
    """Summarize an ended prompt and its choices for the metrics.

    Args:
        request: as it was sent to the engine.
        choices: of this prompt.
        sums: of the same choices.
        outcome: of the whole request, which may have other prompts.
        arrival: time of the request's arrival.
        end: time at which its answer was complete.
    """
    return EndedRequest(
        # A prompt that was answered has its own reason; the request's may be that of another one.
        outcome if outcome in ("error", "abort") else reason(choices),
        len(request.prompt),
        choices[0].cached_tokens,
        sums.completion_tokens,
        sums.longest,
        sums.is_prefilled,
        sums.is_corrupted,
        sums.num_preemptions,
        len(choices),
        request.params.max_tokens,
        choices[0].queue_seconds,
        arrival,
        sums.first,
        sums.last,
        end,
    )


def build_latency_record(
    work: Work,
    choices: Sequence[Choice],
    sums: ChoiceSums,
    timelines: Sequence[Timeline],
    trace: RequestTrace | None,
    *,
    outcome: str,
    why: EndReason | None,
    submitted: float,
    notified: float,
    end: float,
    route: RouteRecord | None = None,
    model: str = "",
) -> LatencyRecord:
    """Build the latency record of a request.

    Args:
        work: the request.
        choices: of all prompts.
        sums: of the same choices.
        timelines: of the same choices.
        trace: spans from the arrival until the engines; None if it did not arrive over HTTP.
        outcome: ``stop``, ``length``, ``abort``, ``error`` or ``running``.
        why: what ended the request, if it was not answered.
        submitted: time at which it was sent to the engines.
        notified: time at which request observers had been notified of its admission.
        end: time at which its answer was complete.
        route: decision of its route, if it was sent to one.
        model: name of the model, by which operators know it; clients may use another.
    """
    answered_id = work.request_id if trace is None else trace.answered_id
    if trace is not None and trace.arrival > work.arrival:
        trace = None  # a different clock, or the trace of another request
    ends = [end if timeline.end is None else timeline.end for timeline in timelines]
    # The choice that ended last determines when the answer was complete.
    last = ends.index(max(ends)) if ends else None
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
        completion_tokens=sums.completion_tokens,
        num_choices=len(choices),
        num_preemptions=sums.num_preemptions,
        # Wall-clock time of the arrival.
        unix=time.time() - (end - work.arrival),
        arrival=work.arrival if trace is None else trace.arrival,
        spans=() if trace is None else trace.spans,
        submitted=submitted,
        notified=notified,
        intervals=() if last is None else timelines[last].intervals(end),
        computed=None if last is None else ends[last],
        first=sums.first,
        last=sums.last,
        end=end,
        why=why,
        route=route,
        model=model,
    )


def finished_event(
    work: Work, outcome: str, tokens: tuple[int, int, int], first: float | None, end: float
) -> RequestFinished:
    """Describe an ended request for observers.

    Args:
        work: the request.
        outcome: of the request.
        tokens: of its prompts, of these cached, and generated ones.
        first: time of its first token; None without tokens.
        end: time at which its answer was complete.
    """
    prompt, cached, generated = tokens
    return RequestFinished(
        request_id=work.request_id,
        tenant=work.requests[0].tenant,
        outcome=outcome,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=generated,
        ttft_seconds=None if first is None else first - work.arrival,
        seconds=end - work.arrival,
    )


def reason(choices: Sequence[Choice]) -> str:
    """Return the outcome of answered choices: ``length`` or ``stop``."""
    for choice in choices:
        if choice.finish_reason == "length":
            return "length"
    return "stop"


def first_token(choices: Sequence[Choice]) -> float | None:
    """Return the time of the first token of any choice; None without tokens."""
    return min([choice.first for choice in choices if choice.first is not None], default=None)
