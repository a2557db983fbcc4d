"""Shared prefills: a common prefix of concurrent prompts is computed once."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.scheduling import deferral
from gatewayd_hooks.strategy import Kind
from tests.random_cases import few_of

Make = Callable[..., Any]
PROMPT = [300 + i * 7 % 3001 for i in range(1000)]
NUM = 16


@pytest.mark.parametrize("cache", ["hash", "radix"])
@pytest.mark.parametrize("scheduler", ["fcfs", "priority"])
def test_sixteen_long_prompts_at_once_compute_their_prefix_once(
    make_engine: Make, cache: str, scheduler: str
) -> None:
    fields = {"scheduler": StrategyChoice(scheduler), "max_batch_tokens": 256, "kv_pages": 2048}
    engine = make_engine(prefix_cache=StrategyChoice(cache), **fields)
    ids = [engine.submit(PROMPT, max_tokens=3, ignore_eos=True)[0] for _ in range(NUM)]
    answers = engine.run()
    # 62 full pages are 992 tokens; then what is left of each, and what each generates.
    assert engine.core.stats.computed_tokens == 992 + NUM * (8 + 2)
    alone = make_engine(prefix_cache=None, **fields)
    wanted = alone.generate(PROMPT, max_tokens=3, ignore_eos=True)
    assert [answers[i].tokens for i in ids] == [wanted] * NUM


def test_a_shared_beginning_is_waited_for_and_no_more(make_engine: Make) -> None:
    engine = make_engine(max_batch_tokens=2048)
    one = engine.submit(PROMPT, max_tokens=2, ignore_eos=True)
    two = engine.submit(PROMPT[:400] + [7] * 600, max_tokens=2, ignore_eos=True)
    other = engine.submit([9] * 100, max_tokens=2, ignore_eos=True)
    output = engine.step()
    # The second is granted the rest of the step; who is behind it is not held up.
    assert [a.sequence for a in output.admitted] == [*one, *other]
    output = engine.step()
    assert [(a.sequence, a.cached_tokens) for a in output.admitted] == [(two[0], 400)]
    engine.run()
    assert engine.core.stats.computed_tokens == 1000 + 600 + 100 + 3


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        ("another salt", {"salt": b"other"}),
        ("log-probabilities of the prompt", {"prompt_logprobs": 0}),
    ],
)
def test_nobody_waits_for_what_cannot_be_shared(
    make_engine: Make, what: str, fields: dict[str, Any]
) -> None:
    engine = make_engine(max_batch_tokens=2048)
    engine.submit(PROMPT, max_tokens=1)
    engine.submit(PROMPT, max_tokens=1, **fields)
    assert len(engine.step().admitted) == 2, what


def test_without_a_prefix_cache_nobody_waits(make_engine: Make) -> None:
    engine = make_engine(max_batch_tokens=2048, prefix_cache=None)
    for _ in range(2):
        engine.submit(PROMPT, max_tokens=1)
    assert len(engine.step().admitted) == 2


def test_whoever_is_waited_for_may_go(make_engine: Make) -> None:
    engine = make_engine(max_batch_tokens=100)
    (first,) = engine.submit(PROMPT, max_tokens=2, ignore_eos=True)
    (second,) = engine.submit(PROMPT, max_tokens=2, ignore_eos=True)
    for _ in range(3):
        engine.step()
    assert engine.answers[second].admitted is None
    engine.core.abort([first])
    engine.step()
    assert engine.answers[second].admitted.cached_tokens == 300
    engine.run()
    assert engine.core.stats.computed_tokens == 300 + 1000 - 300 + 1


def test_waiting_for_others_has_an_end(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferral, "MAX_STEPS", 5)
    engine = make_engine(max_batch_tokens=40, kv_pages=2048)
    engine.submit(PROMPT, max_tokens=2, ignore_eos=True)
    engine.step()
    # Its chunks leave nothing for others, but for this one there are more tokens in a step.
    engine.core._queue.view.token_budget = 100
    (second,) = engine.submit(PROMPT, max_tokens=2, ignore_eos=True)
    engine.core.strategies.bound[Kind.SCHEDULER]._max_chunk = 40
    steps = 0
    while engine.answers[second].admitted is None:
        engine.step()
        steps += 1
    assert steps == 6


@pytest.mark.parametrize("seed", few_of(range(3)))
def test_random_crowds_answer_as_they_would_alone(make_engine: Make, seed: int) -> None:
    rng = random.Random(seed)
    engine = make_engine(
        prefix_cache=StrategyChoice(rng.choice(["hash", "radix"])),
        max_batch_tokens=rng.choice([60, 200]),
        kv_pages=60,
        max_running=6,
    )
    prompts = []
    ids = []
    for _ in range(12):
        prompt = PROMPT[: rng.randrange(1, 200)] + [rng.randrange(2, 5)] * rng.randrange(1, 20)
        for _ in range(rng.choice([1, 1, 3])):
            ids += engine.submit(prompt, max_tokens=4, ignore_eos=True)
            prompts.append(prompt)
        for _ in range(rng.randrange(3)):
            engine.step()
            engine.core.check()
    answers = engine.run()
    alone = make_engine(prefix_cache=None)
    for i, prompt in zip(ids, prompts, strict=True):
        assert answers[i].tokens == alone.generate(prompt, max_tokens=4, ignore_eos=True)
