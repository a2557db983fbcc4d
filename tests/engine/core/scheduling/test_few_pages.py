"""Page shortage with many tenants: every scheduler serves all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.process.config import StrategyChoice

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
SCHEDULERS = [
    StrategyChoice("fcfs"),
    StrategyChoice("priority"),
    StrategyChoice("fair"),
    StrategyChoice("fair", {"lead": 40, "credit": 80}),
    StrategyChoice("slo"),
]
PAGES, NEW = 12, 12


def crowd(seed: int) -> list[tuple[list[int], dict[str, Any]]]:
    """Requests of seven tenants and all classes; the longest needs all pages but one."""
    rng = random.Random(seed)
    return [
        (
            [rng.randrange(3, 200) for _ in range(rng.randint(20, 150))],
            {
                "max_tokens": rng.randint(2, NEW),
                "tenant": f"tenant-{rng.randrange(7)}",
                "priority": rng.randrange(3),
                "weight": rng.choice([0.25, 1.0, 3.0]),
                "deadline": rng.choice([None, None, 0.1, 30.0]),
            },
        )
        for _ in range(14)
    ]


@pytest.fixture(scope="module")
def alone() -> dict[int, list[list[int]]]:
    """Answers made one by one, by seed."""
    return {}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda choice: f"{choice}")
def test_answers_are_those_made_alone_however_few_pages_there_are(
    make_engine: Make,
    folder: Path,
    alone: dict[int, list[list[int]]],
    scheduler: StrategyChoice,
    seed: int,
) -> None:
    requests = crowd(seed)
    if seed not in alone:
        calm = make_engine(folder, max_running=1, kv_pages=400, prefix_cache=None)
        alone[seed] = [
            calm.generate(prompt, max_tokens=fields["max_tokens"], ignore_eos=True)
            for prompt, fields in requests
        ]
    engine = make_engine(
        folder,
        max_running=5,
        kv_pages=PAGES,
        max_batch_tokens=24,
        prefix_cache=None,
        scheduler=scheduler,
    )
    ids: list[int] = []
    for i, (prompt, fields) in enumerate(requests):
        ids += engine.submit(prompt, ignore_eos=True, **fields)
        for _ in range(i % 4):
            engine.step()
            engine.core.check()
    # Those that come to nothing are counted, too.
    answers = engine.run(max_steps=2000)
    assert [answers[i].tokens for i in ids] == alone[seed]
    assert engine.core.stats.faults == 0
    engine.core.check()
