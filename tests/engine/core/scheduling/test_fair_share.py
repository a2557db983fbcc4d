"""Fair share: equals an exhaustive model; turns at grammar compilation."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_engine.fairness.fair_share import ACTIVE_SECONDS, MOST_IDLE, FairShare
from gatewayd_engine.sampling.guides.compile_queue import CompileQueue
from gatewayd_engine.sampling.guides.compiler import CompiledGrammar


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Wanted(SimpleNamespace):
    """A grammar that waits."""


class Bench:
    """A queue at so many threads, and what waits for them."""

    def __init__(self, threads: int) -> None:
        self.clock = Clock()
        self.turns: CompileQueue[CompiledGrammar] = CompileQueue(threads, self.clock)
        self.wanted: list[Any] = []

    def add(self, tenant: str) -> None:
        self.wanted.append(Wanted(tenant=tenant))
        self.turns.add(self.wanted[-1])

    def end(self, one: CompiledGrammar, seconds: float) -> None:
        self.clock.now += seconds
        self.turns.over(one, seconds)

    def next(self) -> CompiledGrammar:
        found = self.turns.next()
        assert found is not None
        return found


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_all_tenants_get_on_at_any_number_of_threads(threads: int) -> None:
    bench = Bench(threads)
    for tenant in "aaaabbbb":
        bench.add(tenant)
    running, order = [], []
    for _ in range(8):
        while (one := bench.turns.next()) is not None:
            running.append(one)
            order.append(one.tenant)
        assert 1 <= len(running) <= threads
        bench.end(running.pop(0), 1.0)
    assert sorted(order) == [*"aaaabbbb"]
    assert set(order[: threads + 1]) == {"a", "b"}


def test_idleness_saves_nothing_up() -> None:
    bench = Bench(1)
    for tenant, seconds in (("idle", 1.0), ("busy", 500.0)):
        bench.add(tenant)
        bench.end(bench.next(), seconds)
    bench.add("busy")
    first = bench.next()
    for tenant in ("idle",) * 6 + ("busy",) * 6:
        bench.add(tenant)
    bench.end(first, 1.0)
    order = []
    for _ in range(6):
        order.append((one := bench.next()).tenant)
        bench.end(one, 1.0)
    assert 2 <= order.count("idle") <= 4, order


def test_what_is_remembered_of_tenants_is_bounded_whoever_comes() -> None:
    bench = Bench(2)
    bench.add("holder")
    holder = bench.next()
    for number in range(20_000):
        bench.add(f"tenant{number}")
        bench.end(bench.next(), 0.0)
    assert len(bench.turns._share._tenants) <= MOST_IDLE + 1
    assert not bench.turns._waiting
    bench.end(holder, 1.0)
    # As many as wait at once are remembered while they do, and no longer.
    for number in range(5000):
        bench.add(f"many{number}")
    assert len(bench.turns._share._tenants) >= 5000
    for _ in range(5000):
        bench.end(bench.next(), 0.0)
    bench.add("one more")
    assert len(bench.turns._share._tenants) <= MOST_IDLE + 1


class Model:
    """What fair shares are, by looking through everything that has happened."""

    def __init__(self, slots: int, clock: Clock) -> None:
        self.slots, self.clock = slots, clock
        self.served, self.used, self.restrained = {}, {}, {}  # type: ignore[var-annotated]
        self.running: list[str] = []
        self.waiting: list[str] = []
        self.virtual_time = 0.0

    def arrive(self, tenant: str) -> None:
        if tenant not in self.running + self.waiting:
            self.served[tenant] = max(self.served.get(tenant, 0.0), self.virtual_time)
        self.used[tenant] = self.clock.now

    def may_run(self, tenant: str) -> bool:
        if len(self.running) >= self.slots:
            return False
        if self.slots == 1 or self.running.count(tenant) < self.slots - 1:
            return True
        if self.restrained.get(tenant, 0.0) > self.clock.now:
            return False
        return not any(
            other in self.running + self.waiting or used > self.clock.now - ACTIVE_SECONDS
            for other, used in self.used.items()
            if other != tenant
        )

    def able(self) -> set[str]:
        """Of those that wait and may run, the ones that had the least."""
        able = {one for one in self.waiting if self.may_run(one)}
        least = min((self.served[one] for one in able), default=0.0)
        return {one for one in able if self.served[one] == least}

    def start(self, tenant: str) -> None:
        self.virtual_time = max(self.virtual_time, self.served[tenant])
        self.running.append(tenant)

    def end(self, tenant: str, service: float) -> None:
        self.running.remove(tenant)
        self.served[tenant] += service
        self.used[tenant] = self.clock.now


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_shares_are_the_model_that_looks_through_everything(seed: int, slots: int) -> None:
    rng, clock = random.Random(seed), Clock()
    share, model = FairShare(lambda: slots, clock), Model(slots, clock)
    for _ in range(100):
        clock.now += rng.choice([0.0, 1.0, 10.0, 70.0])
        tenant = rng.choice("abcd")
        match rng.randrange(6):
            case 0 | 1 | 2:
                share.arrive(tenant)
                model.arrive(tenant)
                assert share.may_run(tenant) == model.may_run(tenant)
                if tenant not in model.waiting and model.may_run(tenant):
                    share.start(tenant)
                    model.start(tenant)
                else:
                    share.wait(tenant)
                    model.waiting.append(tenant)
            case 3 if model.waiting:
                tenant = rng.choice(model.waiting)
                share.leave(tenant)
                model.waiting.remove(tenant)
            case 4:
                share.restrain(tenant, 30.0)
                model.arrive(tenant)
                model.restrained[tenant] = clock.now + 30.0
            case _ if model.running:
                tenant, service = rng.choice(model.running), rng.choice([0.0, 1.0, 7.0])
                share.end(tenant, service)
                model.end(tenant, service)
        while (found := share.next()) is not None:
            assert found in model.able()
            share.leave(found)
            share.start(found)
            model.waiting.remove(found)
            model.start(found)
        assert not model.able()
        assert share.num_running == len(model.running)
