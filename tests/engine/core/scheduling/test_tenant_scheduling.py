"""Tenant-aware schedulers in the engine: their view, and the preempted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.inspect_messages import Browse, Inspect
from gatewayd_engine.process.messages import Amount, TenantQuota
from gatewayd_engine.process.plugin_faults import RequestRejected, StrategyFault
from gatewayd_engine.runner.cpu import Runner
from gatewayd_engine.scheduling.plan_check import check
from gatewayd_engine.state.tenant_ids import Tenants
from gatewayd_hooks.scheduling import Plan, Priority

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
PROMPTS = [[3 + i, *range(20, 40 + 7 * (i % 4))] for i in range(18)]


def submit_all(engine: Any, new: int = 24) -> list[int]:
    """Three tenants, of whom the first has most."""
    ids = []
    for i, prompt in enumerate(PROMPTS):
        tenant = "heavy" if i < 12 else f"light-{i % 2}"
        (sequence,) = engine.submit(
            prompt,
            max_tokens=new,
            ignore_eos=True,
            tenant=tenant,
            weight=1.0 if i < 12 else 2.0,
            priority=i % 3,
            deadline=None if i % 3 == Priority.BATCH else 5.0,
        )
        ids.append(sequence)
    return ids


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize(
    "scheduler", [StrategyChoice("fair", {"lead": 40, "credit": 80}), StrategyChoice("slo")]
)
def test_answers_are_those_of_first_come_first_served_whoever_gives_way(
    make_engine: Make,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheduler: StrategyChoice,
    overlaps: bool,
) -> None:
    calm = make_engine(folder, max_running=18, kv_pages=400, prefix_cache=None)
    ids = submit_all(calm)
    expected = [calm.run()[i].tokens for i in ids]
    monkeypatch.setattr(Runner, "overlaps", overlaps)
    engine = make_engine(folder, max_running=4, kv_pages=60, scheduler=scheduler)
    ids = submit_all(engine)
    assert [engine.run()[i].tokens for i in ids] == expected
    assert engine.core.stats.faults == 0
    engine.core.check()


@pytest.mark.parametrize("overlaps", [False, True])
def test_batch_work_gives_way_and_is_finished_all_the_same(
    make_engine: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, overlaps: bool
) -> None:
    monkeypatch.setattr(Runner, "overlaps", overlaps)
    engine = make_engine(folder, max_running=2, scheduler=StrategyChoice("slo"))
    batch = [
        engine.submit(PROMPTS[i], max_tokens=60, ignore_eos=True, priority=Priority.BATCH)[0]
        for i in range(2)
    ]
    for _ in range(10):
        engine.step()
    (urgent,) = engine.submit(PROMPTS[2], max_tokens=5, priority=Priority.REALTIME, ignore_eos=True)
    for _ in range(10):
        engine.step()
    assert engine.answers[urgent].finished
    assert engine.core.stats.preemptions == 1
    assert [len(engine.run()[i].tokens) for i in batch] == [60, 60]


def test_a_tenant_that_comes_later_is_not_behind_all_of_one_that_came_before(
    make_engine: Make, folder: Path
) -> None:
    """Steps are counted, not seconds: the same on every machine."""
    steps = {}
    for name in ("fcfs", "fair"):
        engine = make_engine(folder, max_running=4, scheduler=StrategyChoice(name))
        for i in range(40):
            engine.submit(PROMPTS[i % 18], max_tokens=20, ignore_eos=True, tenant="heavy")
        for _ in range(15):
            engine.step()
        (light,) = engine.submit([7, *range(60, 80)], max_tokens=2, ignore_eos=True, tenant="light")
        begin = engine.core.stats.step
        while not engine.answers[light].tokens:
            engine.step()
        steps[name] = engine.core.stats.step - begin
    assert steps["fair"] <= 20, "the next place that falls free is its own"
    assert steps["fcfs"] > 8 * steps["fair"]


def test_columns_say_weight_deadline_and_how_often_each_had_to_wait_again(
    make_engine: Make, folder: Path
) -> None:
    engine = make_engine(folder)
    before = time.monotonic()
    engine.submit(PROMPTS[0], max_tokens=4, weight=2.5, deadline=3.0)
    engine.submit(PROMPTS[1], max_tokens=4)
    view = engine.core._queue.view
    one, other = sorted(engine.core._queue.waiting, key=lambda slot: float(view.arrival[slot]))
    assert view.weight[[one, other]].tolist() == [2.5, 1.0]
    assert view.deadline[one] - view.arrival[one] == pytest.approx(3.0)
    assert view.deadline[other] == math.inf
    assert not view.preemptions[[one, other]].any()
    engine.step()
    assert before < view.now < time.monotonic()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"weight": 0.0}, "weight is 0"),
        ({"weight": math.nan}, "weight is nan"),
        ({"deadline": -1.0}, "deadline is -1"),
    ],
)
def test_a_weight_or_deadline_out_of_bounds_is_refused(
    make_engine: Make, folder: Path, fields: dict[str, float], reason: str
) -> None:
    with pytest.raises(RequestRejected, match=reason):
        make_engine(folder).submit(PROMPTS[0], max_tokens=4, **fields)


@pytest.mark.parametrize(
    ("preempt", "reason"),
    [
        ([0, 0], "preempted twice"),
        ([3], "not running"),
        ([1], "preempted and granted"),
        ([[0]], "not a 1-D array"),
    ],
)
def test_a_plan_that_puts_out_whom_it_must_not_is_refused(
    make_engine: Make, folder: Path, preempt: list[Any], reason: str
) -> None:
    engine = make_engine(folder)
    for prompt in PROMPTS[:2]:
        engine.submit(prompt, max_tokens=9, ignore_eos=True)
    engine.step()
    queue = engine.core._queue
    running = queue.view.running
    slots = np.array([running[1]], np.int32)
    named = np.array(preempt, np.int32)
    known = named < len(running)
    named = np.where(known, running[np.where(known, named, 0)], 200).astype(np.int32)
    with pytest.raises(StrategyFault, match=reason):
        check(Plan(slots, np.ones(1, np.int32), named), queue)


def test_of_tenants_that_have_nothing_left_nothing_is_kept(make_engine: Make, folder: Path) -> None:
    """Beside an engine that forgets nobody: those that have anything are who they were."""
    pair = [make_engine(folder, kv_pages=20, page_size=4) for _ in range(2)]
    for engine, many in zip(pair, (10, 10**6), strict=True):
        engine.core._queue.tenants = Tenants(many)
    fields = {"max_tokens": 4, "ignore_eos": True}
    held: list[int] = []
    for i in range(120):
        # The first eight tokens stay the first one's, for all the others use them.
        prompt = [*range(300, 308), 20 + i, *range(20, 20 + i % 11)]
        looks = []
        for engine in pair:
            if i == 2:
                engine.bound(TenantQuota("bounded", Amount(2), Amount(8)))
            if i == 3:
                held += engine.submit([5, 6, 7], tenant="held", is_held=True, **fields)
            engine.submit(prompt, tenant=f"once {i}", **fields)
            looks.append(look(engine))
        assert looks[0] == looks[1]
        assert looks[0]["once 0"] >= 2
    forgets, remembers = (len(engine.core._queue.tenants) for engine in pair)
    assert remembers > 115
    assert forgets <= 33
    for engine, one in zip(pair, held, strict=True):
        with pytest.raises(RequestRejected, match="may hold 8"):
            engine.submit([5] * 40, max_tokens=4, tenant="bounded")
        engine.core.resume([one])
        assert look(engine)["held"] == 2
        engine.core.check()


def look(engine: Any) -> dict[str, int]:
    """Pages of each tenant when nothing runs, found in the pool and in the tree alike."""
    while engine.core.has_work:
        engine.step()
    pool = engine.core.inspect(Inspect(1)).pool
    names = engine.core.inspect(Browse(1)).tenants
    assert set(names) <= set(pool.tenants)
    return dict(zip(pool.tenants, pool.tenant_pages, strict=True))
