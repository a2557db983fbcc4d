"""Answers of many log-probabilities are written in threads: they take seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gatewayd.fairness.fair_threads import FairThreads
from gatewayd.pipeline.generation import Generation

_INLINE_LOGPROBS = 4096
"""Some milliseconds of writing."""

# Few, and none of those that encode prompts: each takes a turn at the interpreter before the
# event loop gets its own.
threads = FairThreads("gatewayd-answer", 2)

T = TypeVar("T")


def is_large(generation: Generation) -> bool:
    """Whether the log-probabilities so far take more than a moment to write."""
    params = generation.work.requests[0].params
    entries = 0
    if params.logprobs is not None:
        entries += generation.completion_tokens * (1 + params.logprobs)
    if params.prompt_logprobs is not None:
        entries += generation.prompt_tokens * (1 + params.prompt_logprobs)
    return entries > _INLINE_LOGPROBS


async def apart(work: Callable[[], T]) -> T:
    """Write outside the event loop."""
    return await threads.run(work)
