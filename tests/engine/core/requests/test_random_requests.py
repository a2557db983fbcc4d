"""Random requests, choices, aborts and preemptions: accounts balance, tokens are unchanged."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.process.config import StrategyChoice
from tests.random_cases import few_of

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
NEW = 10


@pytest.mark.parametrize("seed", few_of(range(6), 2))
def test_whatever_happens_around_it_an_answer_is_its_own(
    make_engine: Make, checkpoint: Callable[[str], Path], seed: int
) -> None:
    check_random_requests(make_engine, checkpoint, seed)


@pytest.mark.usefixtures("overlapping")
@pytest.mark.parametrize("seed", few_of(range(6), 2))
def test_also_when_steps_overlap(
    make_engine: Make, checkpoint: Callable[[str], Path], seed: int
) -> None:
    check_random_requests(make_engine, checkpoint, seed)


def check_random_requests(make_engine: Make, checkpoint: Callable[[str], Path], seed: int) -> None:
    rng = random.Random(seed)
    folder = checkpoint("llama")
    size = rng.choice([4, 16])
    engine = make_engine(
        folder,
        page_size=size,
        kv_pages=rng.choice([400, 480]) // size,
        max_batch_tokens=rng.choice([8, 40, 200]),
        max_running=rng.choice([3, 12]),
        prefix_cache=rng.choice([None, StrategyChoice("hash"), StrategyChoice("radix")]),
    )
    alone = make_engine(folder, prefix_cache=None, kv_pages=200)
    beginnings = [[rng.randrange(2, 320) for _ in range(40)] for _ in range(3)]
    asked: dict[int, tuple[list[int], dict[str, Any], int]] = {}
    aborted: set[int] = set()
    for _ in range(300):
        if rng.random() < 0.25 and len(asked) < 60:
            shared = rng.choice(beginnings)[: rng.randrange(41)]
            prompt = shared + [rng.randrange(2, 320) for _ in range(rng.randrange(1, 40))]
            fields: dict[str, Any] = {"max_tokens": rng.randrange(1, NEW + 1), "ignore_eos": True}
            if rng.random() < 0.5:
                fields |= {"temperature": 1.0, "seed": rng.randrange(2**63)}
            n = rng.choice([1, 1, 2, 4])
            for choice, i in enumerate(engine.submit(prompt, n=n, **fields)):
                asked[i] = prompt, fields, choice
        if rng.random() < 0.08 and asked:
            gone = rng.sample(sorted(asked), min(len(asked), rng.choice([1, 1, 3])))
            aborted |= {i for i in gone if engine.answers[i].finished is None}
            engine.core.abort(gone)
        if engine.core.has_work:
            engine.step()
        engine.core.check()
    answers = engine.run()
    engine.core.check()
    assert len(asked) == 60 or len(asked) > 40
    for i, (prompt, fields, choice) in asked.items():
        if i in aborted:
            assert answers[i].finished is None
            continue
        ids = alone.submit(prompt, n=choice + 1, **fields)
        wanted = alone.run()[ids[choice]].tokens
        assert answers[i].tokens == wanted, (i, choice, len(prompt))
        assert answers[i].finished is not None
