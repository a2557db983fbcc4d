"""KV quotas: tenants with a floor or a ceiling, in the engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import ERROR, Amount, TenantQuota
from gatewayd_engine.process.plugin_faults import RequestRejected
from gatewayd_engine.process.time_causes import Cause

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]


def quota(tenant: str, floor: int | None = None, ceiling: int | None = None) -> TenantQuota:
    """In pages."""
    amounts = (None if pages is None else Amount(pages) for pages in (floor, ceiling))
    return TenantQuota(tenant, *amounts)


def held_by(engine: Any, tenant: str) -> int:
    """Pages that a tenant's sequences hold, found by looking at all of them."""
    sequences = [one for one in engine.core._queue if one.tenant == tenant]
    return len({page for one in sequences for page in (*one.pages, *one.inherited)})


def submit_some(engine: Any, seed: int, count: int = 16) -> list[int]:
    rng = random.Random(seed)
    ids: list[int] = []
    for _ in range(count):
        tenant = rng.choice("aab")
        begin = [ord(tenant), *range(20, 20 + rng.choice((5, 40)))]
        ids += engine.submit(
            begin + [rng.randrange(100, 300) for _ in range(rng.randint(1, 60))],
            n=rng.choice((1, 1, 3)),
            max_tokens=rng.randint(1, 40),
            ignore_eos=True,
            tenant=tenant,
            salt=tenant.encode(),
            priority=rng.randrange(3),
        )
    return ids


@pytest.mark.parametrize(("scheduler", "seed"), [("fcfs", 0), ("fair", 1), ("slo", 2)])
def test_answers_are_the_same_and_nobody_is_over_its_ceiling(
    make_engine: Make, folder: Path, depth: bool, scheduler: str, seed: int
) -> None:
    calm = make_engine(folder, kv_pages=400, prefix_cache=None)
    ids = submit_some(calm, seed)
    expected = [calm.run()[i].tokens for i in ids]
    engine = make_engine(folder, kv_pages=60, max_running=8, scheduler=StrategyChoice(scheduler))
    engine.bound(quota("a", 8, 12), quota("b", 6, 30))
    assert submit_some(engine, seed) == ids
    most = 0
    for _ in range(5000):
        if not engine.core.has_work:
            break
        engine.step()
        engine.core.check()
        # Pages of who was put out while a step was on its way are held until it has landed.
        assert held_by(engine, "a") <= 12
        most = max(most, held_by(engine, "a"))
    assert [engine.answers[i].tokens for i in ids] == expected
    assert engine.core.stats.faults == 0
    assert most > 8, "it was far from its ceiling"


def test_whoever_is_at_its_ceiling_waits_and_others_pass(make_engine: Make, folder: Path) -> None:
    engine = make_engine(folder, kv_pages=200, max_running=16)
    engine.bound(quota("a", ceiling=6))
    first = [
        engine.submit([9, i, *range(40, 70)], max_tokens=30, ignore_eos=True, tenant="a")[0]
        for i in range(6)
    ]
    (other,) = engine.submit([7, *range(40, 70)], max_tokens=4, ignore_eos=True, tenant="b")
    causes: dict[int, set[int]] = {}
    while engine.core.has_work:
        output = engine.step()
        moved = np.frombuffer(output.moved, np.int64).tolist()
        for sequence, cause in zip(moved, output.causes, strict=True):
            causes.setdefault(sequence, set()).add(cause)
        if engine.answers[other].tokens and not engine.answers[first[-1]].tokens:
            passed = True
    assert passed
    assert Cause.KV_QUOTA in causes[first[-1]]
    assert Cause.KV_QUOTA not in causes[other]
    assert all(len(engine.answers[i].tokens) == 30 for i in first)


def test_who_outgrows_its_ceiling_puts_out_its_own(make_engine: Make, folder: Path) -> None:
    """Answers are long and prompts short: all are let in, and then have no room."""
    engine = make_engine(folder, kv_pages=200, max_running=16)
    engine.bound(quota("a", ceiling=9))
    for i in range(4):
        engine.submit([9, i, *range(40, 50)], max_tokens=100, ignore_eos=True, tenant="a")
    engine.step()
    # The last to come is the first to give way, to others of its tenant.
    (other,) = engine.submit([7, *range(40, 70)], max_tokens=100, ignore_eos=True, tenant="b")
    preempted: set[int] = set()
    while engine.core.has_work:
        preempted.update(engine.step().preempted)
        assert held_by(engine, "a") <= 9
    assert preempted
    assert other not in preempted


def test_cached_pages_below_the_floor_stay_whoever_floods_the_pool(
    make_engine: Make, folder: Path
) -> None:
    """Without the floor nothing is left, which the second engine shows."""
    cached = {}
    for floor in (6, None):
        engine = make_engine(folder, kv_pages=48, max_running=4)
        if floor:
            engine.bound(quota("a", floor))
        prompt = [9, *range(140, 251)]
        engine.generate(prompt, max_tokens=2, ignore_eos=True, tenant="a", salt=b"a")
        for i in range(12):
            engine.submit([7, i, *range(60, 310)], max_tokens=9, tenant="b", salt=b"b")
        engine.run()
        (again,) = engine.submit(prompt, max_tokens=2, tenant="a", salt=b"a")
        cached[floor] = engine.run()[again].admitted.cached_tokens
    assert cached == {6: 96, None: 0}


def test_one_that_could_never_run_is_refused_with_the_limit(
    make_engine: Make, folder: Path
) -> None:
    engine = make_engine(folder, kv_pages=64)
    engine.bound(TenantQuota("a", Amount(share=0.75), Amount(share=0.0625)))
    with pytest.raises(RequestRejected, match=r"100 tokens take 7 pages .* may hold 4") as refusal:
        engine.submit(list(range(20, 70)), max_tokens=50, tenant="a")
    assert refusal.value.code == "kv_quota_exceeded"
    with pytest.raises(RequestRejected, match="all but 16 of its 64 may be reserved for other"):
        engine.submit(list(range(20, 120)), max_tokens=157, tenant="b")
    engine.generate(list(range(20, 70)), max_tokens=14, tenant="a")
    left = engine.generate(
        list(range(20, 70)), max_tokens=900, ignore_eos=True, may_be_shorter=True, tenant="a"
    )
    assert len(left) == 14, "it did not say how long it is to be"
    engine.generate(list(range(20, 120)), max_tokens=156, tenant="b", ignore_eos=True)


def test_one_that_waits_and_can_never_run_any_more_fails_when_the_ceiling_falls(
    make_engine: Make, folder: Path
) -> None:
    engine = make_engine(folder, kv_pages=64, max_running=2)
    prompt = list(range(20, 70))
    expected = engine.generate(prompt, max_tokens=50, ignore_eos=True)
    running = engine.submit(prompt, n=2, max_tokens=50, ignore_eos=True, tenant="a")
    for _ in range(4):
        engine.step()
    waiting = engine.submit(prompt, n=2, max_tokens=50, ignore_eos=True, tenant="a")
    (small,) = engine.submit([5, 6], max_tokens=9, ignore_eos=True, tenant="a")
    engine.bound(quota("a", ceiling=2))
    engine.run()
    for sequence in waiting:
        finished = engine.answers[sequence].finished
        assert finished.reason == ERROR
        assert finished.error[0] == "kv_quota_exceeded"
    assert [engine.answers[one].tokens for one in running] == [expected] * 2
    assert len(engine.answers[small].tokens) == 9
    # Who ran is gone: the ceiling holds as it was set.
    engine.generate([5, 6], max_tokens=2, tenant="b")
    assert engine.core._pages.quotas.of(engine.core._queue.tenants.number_of("a")).ceiling == 2
    engine.core.check()


@pytest.mark.parametrize("floors", [(60, 60), (64, 64), (40, 8)])
def test_no_floor_ends_what_runs_and_all_together_leave_a_tenth(
    make_engine: Make, folder: Path, floors: tuple[int, int]
) -> None:
    """Whose cached pages are kept from it may be all that there are."""
    engine = make_engine(folder, kv_pages=64, max_running=4)
    prompt = list(range(20, 70))
    expected = engine.generate(prompt, max_tokens=400, ignore_eos=True)
    for tenant in ("a", "b"):
        for i in range(4):
            engine.generate([9, i, *range(140, 250)], max_tokens=2, tenant=tenant, salt=b"f")
    (live,) = engine.submit(prompt, max_tokens=400, ignore_eos=True, tenant="c", salt=b"c")
    for _ in range(20):
        engine.step()
    engine.bound(quota("a", floors[0]), quota("b", floors[1]))
    engine.run()
    assert engine.answers[live].tokens == expected
    engine.generate([5], max_tokens=2, tenant="c")
    kept = sum(one.floor for one in engine.core._pages.quotas.bounds.values())
    assert kept == min(sum(floors), 57) or kept in (56, 57)
    with pytest.raises(RequestRejected, match=r"all but ([0-9]+) of its 64 may be reserved"):
        engine.submit([5] * 100, max_tokens=200, tenant="c")


def test_nothing_is_counted_where_nobody_has_a_quota(make_engine: Make, folder: Path) -> None:
    engine = make_engine(folder)
    engine.bound(quota("a", ceiling=9))
    engine.bound()
    assert engine.core._pages.quotas is None


def test_pins_hold_for_pages_that_were_set_aside(make_engine: Make, folder: Path) -> None:
    engine = make_engine(folder, kv_pages=64, max_running=2, eviction=StrategyChoice("retention"))
    engine.bound(quota("a", 6))
    prompt = [9, *range(140, 251)]
    engine.generate(prompt, max_tokens=2, ignore_eos=True, tenant="a", salt=b"a")

    def flood() -> None:
        for i in range(12):
            engine.submit([7, i, *range(60, 310)], max_tokens=9, tenant="b", salt=b"b")
        engine.run()

    flood()
    assert engine.core._pages.quotas.num_protected
    assert engine.core._placement.pins.pin(np.array(prompt, np.int32), b"a", 60.0) >= 96
    engine.bound()
    flood()
    (again,) = engine.submit(prompt, max_tokens=2, tenant="a", salt=b"a")
    assert engine.run()[again].admitted.cached_tokens == 96
