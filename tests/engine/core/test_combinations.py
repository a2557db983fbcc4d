"""Greedy tokens are the same whatever is chosen: every strategy of every kind, in combinations.

The strategies are those that are installed, so a new one is in the draw from its first day.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gatewayd_engine.config import StrategyChoice
from gatewayd_hooks.catalog import Catalog
from gatewayd_hooks.strategy import Kind

Make = Callable[..., Any]

RANDOM = random.Random(4)
SHARED = [RANDOM.randrange(2, 4096) for _ in range(70)]
PROMPTS = [
    SHARED[: RANDOM.randrange(71)] + [RANDOM.randrange(2, 4096) for _ in range(1 + 9 * i)]
    for i in range(10)
]
# Text that repeats itself, for drafters that look for that.
PROMPTS += [([*range(20, 32)] * 6)[: 40 + 7 * i] for i in range(3)]
LENGTH = 24


def names(kind: Kind) -> list[str]:
    found = [e for e in Catalog.installed().entries if e.kind == kind]
    return sorted(e.name for e in found if e.distribution == "gatewayd")


@dataclass(frozen=True)
class Combination:
    """What one engine is made of, and what happens to it."""

    fields: dict[str, Any]
    seed: int

    @classmethod
    def drawn(cls, seed: int) -> Combination:
        dice = random.Random(seed)

        def one(kind: Kind) -> StrategyChoice:
            return StrategyChoice(dice.choice(names(kind)))

        controller = dice.choice(["adaptive", "fixed"])
        settings = {"drafts": dice.randint(1, 9)} if controller == "fixed" else {}
        page_size = dice.choice([4, 8, 16])
        tight = -(-(max(map(len, PROMPTS)) + LENGTH) // page_size) + dice.randint(1, 24)
        fields = {
            "scheduler": one(Kind.SCHEDULER),
            "prefix_cache": dice.choice([None, *map(StrategyChoice, names(Kind.PREFIX_CACHE))]),
            "eviction": one(Kind.EVICTION),
            "preemption": one(Kind.PREEMPTION),
            "drafter": dice.choice([None, *map(StrategyChoice, names(Kind.DRAFTER))]),
            "spec_controller": StrategyChoice(controller, settings),
            "page_size": page_size,
            "kv_pages": dice.choice([512, tight, tight]),
            "max_running": dice.choice([3, 8, 64]),
            "max_batch_tokens": dice.choice([32, 100, 512]),
        }
        return cls(fields, seed)

    def answers(self, make_engine: Make) -> list[list[int]]:
        """Every prompt twice, in a random order, some while others run."""
        dice = random.Random(self.seed)
        engine = make_engine(**self.fields)
        order = [*range(len(PROMPTS))] * 2
        dice.shuffle(order)
        ids = []
        for k in order:
            ids.append(engine.submit(PROMPTS[k], max_tokens=LENGTH, ignore_eos=True)[0])
            for _ in range(dice.randrange(4)):
                engine.step()
        done = engine.run()
        assert engine.core.stats.faults == 0
        for i in ids:
            assert done[i].finished.error is None
        found: list[list[int]] = [[] for _ in PROMPTS]
        for k, i in zip(order, ids, strict=True):
            assert not found[k] or found[k] == done[i].tokens
            found[k] = done[i].tokens
        return found


@pytest.fixture(scope="session")
def oracle_answers(oracle: Callable[..., Any]) -> list[list[int]]:
    """What transformers generates, one prompt at a time."""
    import torch

    from gatewayd_engine import embedded

    model = oracle(embedded.folder("nano"))
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=LENGTH,
            min_new_tokens=LENGTH,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=5,
        )
        found.append(out[0, len(prompt) :].tolist())
    return found


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in (Kind.PREFIX_CACHE, Kind.EVICTION, Kind.PREEMPTION, Kind.DRAFTER)
        for name in names(kind)
    ],
)
def test_each_strategy_alone(
    make_engine: Make, oracle_answers: list[list[int]], kind: Kind, name: str
) -> None:
    fields = {
        kind.value: StrategyChoice(name),
        "spec_controller": StrategyChoice("fixed", {"drafts": 6}),
        "kv_pages": 40,
    }
    assert Combination(fields, 1).answers(make_engine) == oracle_answers


@pytest.mark.parametrize("seed", range(12))
def test_a_few_combinations(make_engine: Make, oracle_answers: list[list[int]], seed: int) -> None:
    assert Combination.drawn(seed).answers(make_engine) == oracle_answers


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_combinations(make_engine: Make, oracle_answers: list[list[int]]) -> None:
    for seed in range(1000, 1200):
        combination = Combination.drawn(seed)
        assert combination.answers(make_engine) == oracle_answers, combination
