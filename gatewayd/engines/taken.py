"""What requests took of the engines, as these tell it once a sequence has ended."""

from __future__ import annotations

from typing import NamedTuple


class Took(NamedTuple):
    """Of one sequence.

    Attributes:
        seconds: of its engine, by its share of the tokens of steps.
        prompt_tokens: of its prompt, computed or found in the prefix cache, each counted once.
        cached_tokens: of these, found there when it first left the queue.
        generated: tokens, also those that nobody was told.
    """

    seconds: float
    prompt_tokens: int
    cached_tokens: int
    generated: int


class Taken(NamedTuple):
    """Of a prompt and all its choices, on all engines that had it.

    Attributes:
        seconds: of engines; of one that was lost, none.
        prompt_tokens: computed or found in the prefix cache; what several choices share, and what
            was computed again, counts once.
        cached_tokens: of these, found there.
        generated: tokens of each choice, in their order, at the engine that had it last; 0 if that
            was lost.
    """

    seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated: tuple[int, ...] = ()
