"""What is counted of a prompt and its choices when they have ended."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gatewayd.engines.api import EngineRequest
from gatewayd.metrics.requests import EndedRequest
from gatewayd.pipeline.choice import Choice
from gatewayd.pipeline.work import Work
from gatewayd.tracing.request_trace import RequestTrace
from gatewayd.tracing.time_ledger import TimeLedger, Why
from gatewayd.tracing.timeline import Timeline


def account(
    request: EngineRequest,
    choices: Sequence[Choice],
    *,
    outcome: str,
    arrival: float,
    end: float,
) -> EndedRequest:
    """Sum up a prompt.

    Args:
        request: what was asked of the engine.
        choices: of this prompt.
        outcome: of the whole request, which may have other prompts.
        arrival: when the request came.
        end: when its answer was complete.
    """
    counts = [choice.completion_tokens for choice in choices]
    return EndedRequest(
        outcome=outcome if outcome in ("error", "abort") else reason(choices),
        prompt_tokens=len(request.prompt),
        cached_tokens=choices[0].cached_tokens,
        completion_tokens=sum(counts),
        longest=max(counts),
        # Some models end at once, without a token.
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


def ledger_of(
    work: Work,
    choices: Sequence[Choice],
    timelines: Sequence[Timeline],
    trail: RequestTrace | None,
    *,
    outcome: str,
    why: Why | None,
    submitted: float,
    handed: float,
    end: float,
) -> TimeLedger:
    """Where the time of a request went.

    Args:
        work: what was asked.
        choices: of all prompts.
        timelines: of the same.
        trail: from its arrival to the engines; None if it came another way.
        outcome: how it ended.
        why: what ended it, if it was not answered.
        submitted: when it was sent to the engines.
        handed: when those were told who watch requests.
        end: when its answer was complete.
    """
    answered_id = work.request_id if trail is None else trail.answered_id
    if trail is not None and trail.arrival > work.arrival:
        trail = None  # of another clock, or of another request
    ends = [end if timeline.end is None else timeline.end for timeline in timelines]
    last = max(range(len(ends)), key=ends.__getitem__, default=None)
    request = work.requests[0]
    return TimeLedger(
        request_id=work.request_id,
        answered_id=answered_id,
        endpoint=work.endpoint,
        tenant=request.tenant,
        priority=request.priority,
        outcome=outcome,
        prompt_tokens=sum([len(one.prompt) for one in work.requests]),
        cached_tokens=sum([choice.cached_tokens for choice in choices[:: work.num_choices]]),
        completion_tokens=sum([choice.completion_tokens for choice in choices]),
        num_choices=len(choices),
        num_preemptions=sum([choice.num_preemptions for choice in choices]),
        unix=time.time() - (end - work.arrival),
        arrival=work.arrival if trail is None else trail.arrival,
        spans=() if trail is None else trail.spans,
        submitted=submitted,
        handed=handed,
        stretches=() if last is None else timelines[last].stretches(end),
        computed=None if last is None else ends[last],
        first=first_token(choices),
        last=max([choice.last for choice in choices if choice.last is not None], default=None),
        end=end,
        why=why,
    )


def reason(choices: Sequence[Choice]) -> str:
    """Why choices that were answered have ended: ``length`` or ``stop``."""
    return "length" if "length" in [choice.finish_reason for choice in choices] else "stop"


def first_token(choices: Sequence[Choice]) -> float | None:
    """When the first token of all came."""
    return min([choice.first for choice in choices if choice.first is not None], default=None)
