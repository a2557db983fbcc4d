"""What is counted of a prompt and its choices when they have ended."""

from __future__ import annotations

from collections.abc import Sequence

from gatewayd.engines.seam import EngineRequest
from gatewayd.metrics_requests import Ended
from gatewayd.pipeline_choice import Choice


def account(
    request: EngineRequest,
    choices: Sequence[Choice],
    *,
    outcome: str,
    arrival: float,
    end: float,
) -> Ended:
    """Sum up a prompt.

    Args:
        request: what was asked of the engine.
        choices: of this prompt.
        outcome: of the whole request, which may have other prompts.
        arrival: when the request came.
        end: when its answer was complete.
    """
    counts = [choice.completion_tokens for choice in choices]
    return Ended(
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


def reason(choices: Sequence[Choice]) -> str:
    """Why choices that were answered have ended: ``length`` or ``stop``."""
    return "length" if "length" in [choice.finish_reason for choice in choices] else "stop"


def first_token(choices: Sequence[Choice]) -> float | None:
    """When the first token of all came."""
    return min([choice.first for choice in choices if choice.first is not None], default=None)
