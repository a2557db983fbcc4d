"""Resource consumption of requests, as reported by engines at the end of sequences."""

from __future__ import annotations

from typing import NamedTuple


class SequenceUsage(NamedTuple):
    """Consumption of one sequence.

    Attributes:
        seconds: engine time, by its share of the tokens of each step.
        prompt_tokens: prompt tokens computed or found in the prefix cache, each counted once.
        cached_tokens: of these, found in the cache when it first left the queue.
        generated: generated tokens, including undelivered ones.
    """

    seconds: float
    prompt_tokens: int
    cached_tokens: int
    generated: int


class PromptUsage(NamedTuple):
    """Consumption of a prompt and all its choices, on all engines that ran it.

    Attributes:
        seconds: engine time, without that of lost engines.
        prompt_tokens: prompt tokens computed or found in the prefix cache; tokens shared by choices
            or recomputed count once.
        cached_tokens: of these, found in the cache.
        generated: generated tokens of each choice, in order, on the engine that ran it last; 0 if
            that was lost.
    """

    seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated: tuple[int, ...] = ()
