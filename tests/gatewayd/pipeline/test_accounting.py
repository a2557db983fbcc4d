"""Sums over choices equal their definitions; timings are those of the earliest choice."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from gatewayd.pipeline.accounting import ChoiceSums, sums_of
from gatewayd.pipeline.timing import RequestTiming, timing_of


@dataclass
class EndedChoice:
    """What the sums and the timing read of a choice."""

    completion_tokens: int = 0
    num_preemptions: int = 0
    is_corrupted: bool = False
    is_done: bool = False
    queue_seconds: float | None = None
    first: float | None = None
    last: float | None = None


def drawn(random_: random.Random) -> EndedChoice:
    """A choice in any state, with or without tokens."""
    choice = EndedChoice(
        num_preemptions=random_.choice([0, 0, 3]),
        is_corrupted=random_.random() < 0.1,
        is_done=random_.random() < 0.5,
        queue_seconds=random_.choice([None, 0.25, 0.5]),
    )
    if random_.random() < 0.6:
        choice.completion_tokens = random_.randrange(1, 9)
        choice.first = random_.uniform(10, 12)
        choice.last = choice.first + random_.choice([0.0, 1.0, 2.0])
    return choice


@pytest.mark.parametrize("seed", range(40))
def test_sums_equal_their_definitions(seed: int) -> None:
    random_ = random.Random(seed)
    choices: list[Any] = [drawn(random_) for _ in range(random_.randrange(1, 6))]
    assert sums_of(choices) == ChoiceSums(
        completion_tokens=sum(one.completion_tokens for one in choices),
        longest=max(one.completion_tokens for one in choices),
        num_preemptions=sum(one.num_preemptions for one in choices),
        is_prefilled=any(one.first is not None or one.is_done for one in choices),
        is_corrupted=any(one.is_corrupted for one in choices),
        first=min((one.first for one in choices if one.first is not None), default=None),
        last=max((one.last for one in choices if one.last is not None), default=None),
    )


@pytest.mark.parametrize("seed", range(40))
def test_the_timing_is_of_the_choice_with_the_earliest_token(seed: int) -> None:
    random_ = random.Random(seed)
    choices: list[Any] = [drawn(random_) for _ in range(random_.randrange(1, 6))]
    timing = timing_of(choices, 9.0, 9.5)
    assert timing.gateway == 0.5
    spoke = [one for one in choices if one.first is not None]
    earliest = min(spoke, key=lambda one: one.first) if spoke else choices[0]
    assert timing.queue == earliest.queue_seconds
    if not spoke or earliest.queue_seconds is None:
        assert timing[2:] == (None, None)
        return
    # The phases add up to the first and to the latest token, unless the engine's clock is ahead.
    begin = 9.5 + earliest.queue_seconds
    assert timing.prefill == pytest.approx(max(0.0, earliest.first - begin))
    decode = max(one.last for one in spoke) - earliest.first
    assert timing.decode == (pytest.approx(decode) if decode > 0 else None)


def test_phases_that_have_not_started_are_the_last_ones() -> None:
    # Headers have one format for each number of phases.
    for seed in range(200):
        random_ = random.Random(seed)
        choices: list[Any] = [drawn(random_) for _ in range(random_.randrange(1, 6))]
        known = [seconds is not None for seconds in timing_of(choices, 9.0, 9.5)]
        assert known == sorted(known, reverse=True)
    assert RequestTiming._fields == ("gateway", "queue", "prefill", "decode")
