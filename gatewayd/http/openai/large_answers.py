"""Threads that encode responses with many log-probabilities, which takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gatewayd.fairness.fair_threads import FairThreads
from gatewayd.pipeline.generation import Generation

_INLINE_LOGPROBS = 4096
"""Maximum log-probabilities encoded on the event loop: some milliseconds."""

# Few, and separate from those that encode prompts, because each competes with the event loop for
# the GIL.
threads = FairThreads("gatewayd-answer", 2)

T = TypeVar("T")


def is_large(generation: Generation) -> bool:
    """Whether the log-probabilities so far are too many to encode on the event loop."""
    # The same for all prompts of a request.
    params = generation.work.requests[0].params
    entries = 0
    if params.logprobs is not None:
        entries += generation.completion_tokens * (1 + params.logprobs)
    if params.prompt_logprobs is not None:
        entries += generation.prompt_tokens * (1 + params.prompt_logprobs)
    return entries > _INLINE_LOGPROBS


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run work off the event loop."""
    return await threads.run(work)
