"""Operator actions: random hold, release, bump, cancel and evict, against brute force."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import Amount, Bump, Evict, TenantQuota
from tests.engine.core.conftest import Harness, MakeEngine, build

pytestmark = pytest.mark.usefixtures("small_model")

NEW = 8
PROMPTS = [[300 + i * 7 % 3001 for i in range(48)][: 12 + 9 * j] + [5 + j] * 3 for j in range(5)]
TIGHT: dict[str, Any] = {"page_size": 4, "kv_pages": 48, "max_running": 3, "max_batch_tokens": 24}


@functools.cache
def alone(number: int, seed: int, choice: int) -> list[int]:
    """What a choice of a request answers when nobody else is there."""
    engine = build(page_size=4, kv_pages=128)
    ids = engine.submit(PROMPTS[number], n=choice + 1, **fields(seed))
    engine.run()
    engine.core.strategies.close()
    return engine.answers[ids[choice]].tokens


def fields(seed: int) -> dict[str, Any]:
    return {
        "max_tokens": NEW,
        "ignore_eos": True,
        "temperature": 0.8 if seed else 0.0,
        "seed": seed,
    }


class Model:
    """What must be so, kept beside the engine."""

    def __init__(self, engine: Harness, rng: random.Random) -> None:
        self.engine = engine
        self.rng = rng
        self.asked: dict[int, tuple[int, int, int]] = {}
        self.held: set[int] = set()
        self.cancelled: dict[int, list[int]] = {}

    @property
    def live(self) -> list[int]:
        answers = self.engine.answers
        return [i for i in self.asked if answers[i].finished is None and i not in self.cancelled]

    def act(self) -> None:
        """Do something."""
        rng, operating, live = self.rng, self.engine.core.operator, self.live
        some = rng.sample(live, min(len(live), rng.randint(1, 3)))
        match rng.choice(["submit", "step", "step", "hold", "release", "bump", "cancel", "evict"]):
            case "submit" if len(live) < 9:
                number, seed, n = rng.randrange(len(PROMPTS)), rng.randrange(2), rng.randint(1, 2)
                is_held = rng.random() < 0.2
                ids = self.engine.submit(
                    PROMPTS[number],
                    n=n,
                    priority=rng.randrange(3),
                    tenant=rng.choice("ab"),
                    is_held=is_held,
                    **fields(seed),
                )
                self.asked.update((i, (number, seed, at)) for at, i in enumerate(ids))
                self.held.update(ids if is_held else [])
            case "hold" if some:
                request = self.request_of(some[0])
                operating.pause_sequences(request)
                # A step that was on its way lands: what is held then stands still.
                self.step()
                self.step()
                self.held.update(request)
            case "release" if some:
                request = self.request_of(some[0])
                self.engine.core.resume(request)
                self.held.difference_update(request)
            case "bump":
                priority = rng.choice([None, 0, 1, 2])
                operating.bump(Bump(some, priority, None if priority is None else 1.0))
            case "cancel" if some and rng.random() < 0.4:
                self.engine.core.abort(some)
                self.cancelled.update((i, list(self.engine.answers[i].tokens)) for i in some)
            case "evict":
                before = self.engine.core.stats
                pages = operating.evict(Evict(1, None, rng.choice([None, "a", "b"]))).pages
                after = self.engine.core.stats
                assert before.cached_pages - after.cached_pages == pages
                assert after.held_pages == before.held_pages
            case _:
                self.step()
        self.check()

    def request_of(self, sequence: int) -> list[int]:
        """All its choices: one that waits for the prompt of another is held with it."""
        choice = self.asked[sequence][2]
        first = sequence - choice
        return [
            i for i in range(first, first + 2) if i in self.asked and self.asked[i][2] == i - first
        ]

    def step(self) -> None:
        frozen = {i: len(self.engine.answers[i].tokens) for i in self.held}
        if self.engine.core.has_work:
            self.engine.step()
        for i, count in frozen.items():
            assert len(self.engine.answers[i].tokens) == count, f"{i} is held"

    def check(self) -> None:
        core = self.engine.core
        core.check()
        stats = core.stats
        assert stats.free_pages + stats.cached_pages + stats.held_pages == TIGHT["kv_pages"]
        for i in self.live:
            number, seed, choice = self.asked[i]
            tokens = self.engine.answers[i].tokens
            assert tokens == alone(number, seed, choice)[: len(tokens)]
        if not core.has_work:
            assert not set(self.live) - self.held, "somebody is forgotten"

    def end(self) -> None:
        """Whoever is not cancelled has its whole answer at last."""
        self.engine.core.resume(list(self.held))
        self.held.clear()
        for _ in range(2000):
            if not self.engine.core.has_work:
                break
            self.step()
        self.check()
        for i, (number, seed, choice) in self.asked.items():
            tokens = self.engine.answers[i].tokens
            if i in self.cancelled:
                assert len(tokens) <= len(self.cancelled[i]) + 1
            else:
                assert tokens == alone(number, seed, choice), f"request {i}"
        assert self.engine.core.stats.held_pages == 0


@pytest.mark.usefixtures("depth")
@pytest.mark.parametrize("scheduler", ["fcfs", "priority", "fair", "slo"])
def test_whatever_an_operator_does_answers_are_their_own(
    make_engine: MakeEngine, scheduler: str
) -> None:
    for seed in range(4):
        rng = random.Random(seed)
        engine = make_engine(
            **TIGHT,
            scheduler=StrategyChoice(scheduler),
            preemption=StrategyChoice(rng.choice(["recompute", "swap"])),
            eviction=StrategyChoice(rng.choice(["lru", "retention", "cost"])),
            prefix_cache=StrategyChoice(rng.choice(["hash", "radix"])),
        )
        if seed % 2:
            engine.core.set_quotas(
                [TenantQuota("a", floor=Amount(12)), TenantQuota("b", ceiling=Amount(36))]
            )
        model = Model(engine, rng)
        for _ in range(120):
            model.act()
        model.end()
        assert engine.core.stats.faults == 0
