"""What requests consumed, as the engines report it when a sequence has ended."""

from __future__ import annotations

from typing import NamedTuple


class SequenceUsage(NamedTuple):
    """Consumption of one sequence.

    Attributes:
        seconds: engine time, by its share of the tokens of each step.
        prompt_tokens: of its prompt, computed or found in the prefix cache, each counted once.
        cached_tokens: of these, found there when it first left the queue.
        generated: tokens, also those that were never delivered.
    """

    seconds: float
    prompt_tokens: int
    cached_tokens: int
    generated: int


class PromptUsage(NamedTuple):
    """Consumption of a prompt and all its choices, on all engines that ran it.

    Attributes:
        seconds: engine time; none of an engine that was lost.
        prompt_tokens: computed or found in the prefix cache; what several choices share, and what
            was computed again, counts once.
        cached_tokens: of these, found there.
        generated: tokens of each choice, in order, on the engine that ran it last; 0 if that was
            lost.
    """

    seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated: tuple[int, ...] = ()
