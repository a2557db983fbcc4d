"""Engine inspection between steps: equals a brute-force look at everything."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gatewayd_engine.core.telemetry.inspection import MOST_CELLS, Inspection, _cells
from gatewayd_engine.core.telemetry.prefix_tree import _below
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.page_tree import NO_PARENT
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.inspect_messages import (
    PAGE_STATES,
    Browse,
    Browsed,
    Inspect,
    Inspected,
)
from gatewayd_engine.process.machine_usage import UsageMeter
from gatewayd_engine.process.messages import PinPrefix, SamplingParams
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.sequence import Sequence
from gatewayd_evict_retention.strategy import Retention
from gatewayd_hooks.caching import PageOrigin
from gatewayd_hooks.strategy import Kind
from tests.engine.core.tiered_engines import evict_all, host

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
PAGES = 24


def inspect(engine: Any) -> Inspected:
    found = engine.core.inspect(Inspect(7))
    assert isinstance(found, Inspected)
    assert found.number == 7
    return found


def column(data: bytes, kind: Any = np.int32) -> list[int]:
    found: list[int] = np.frombuffer(data, kind).tolist()
    return found


def one_by_one(core: Any) -> tuple[str, list[str | None]]:
    """State and owner of each page, from what each sequence and the cache say.

    A tenant's salt is its name here.
    """
    pages, holders = core._pages, Counter[int]()
    owners: dict[int, str] = {}
    for sequence in core._queue:
        for page in (*sequence.pages, *sequence.inherited):
            holders[page] += 1
            owners[page] = sequence.tenant
    for given_back in pages._deferred:
        holders.update(given_back)
    eviction = core.strategies.bound[Kind.EVICTION]
    pinned = eviction.pinned() if hasattr(eviction, "pinned") else ()
    states, whose = "", []
    for page in range(pages.num_pages):
        known, count = pages.is_known(page), holders[page]
        if count:
            states += "a" if count == 1 else "s"
        else:
            states += ("p" if page in pinned else "c") if known else "."
        origin = pages.origin(page) if known else None
        whose.append(owners.get(page, None if origin is None else origin.salt.decode()))
    return states, whose


def check(engine: Any) -> str:
    core = engine.core
    found, (states, whose) = inspect(engine), one_by_one(core)
    pool, stats = found.pool, core.stats
    assert pool.cells.decode() == states
    assert pool.counts == [states.count(state) for state in PAGE_STATES]
    free, cached, active, shared, pinned = pool.counts
    assert sum(pool.counts) == PAGES
    assert (free, cached + pinned) == (stats.free_pages, stats.cached_pages)
    assert active + shared == stats.held_pages
    told = [None if at < 0 else pool.tenants[at] for at in column(pool.owners)]
    # What a step in flight gives back has no owner any more.
    given_back = {page for pages in core._pages._deferred for page in pages}
    assert all(told[p] == whose[p] for p in range(PAGES) if p not in given_back)
    assert dict(zip(pool.tenants, pool.tenant_pages, strict=True)) == Counter(
        name for name in told if name is not None
    )
    assert pool.tenant_pages == sorted(pool.tenant_pages, reverse=True)
    held = {sequence.id: sequence for sequence in core._queue}
    assert sorted(column(found.sequences, np.int64)) == sorted(held)
    columns = (found.sequences, found.computed, found.pages, found.cached)
    kinds = (np.int64, np.int32, np.int32, np.int32)
    rows = [column(data, kind) for data, kind in zip(columns, kinds, strict=True)]
    for i, computed, num_pages, cached_tokens in zip(*rows, strict=True):
        slot = held[i].slot
        landed = core._queue.view.num_computed[slot] - core._queue.in_flight[slot]
        assert (computed, num_pages) == (landed, len(held[i].pages))
        if held[i].row >= 0:
            assert cached_tokens == -1
        else:
            tokens = int(core._queue.view.num_tokens[slot])
            assert cached_tokens == tokens - core._uncached(slot)
    return states


def whole_tree(engine: Any) -> dict[int, tuple[int, int]]:
    """Parent and pages below of each page, browsed level by level."""
    found: dict[int, tuple[int, int]] = {}
    ahead = [NO_PARENT]
    while ahead:
        parent = ahead.pop()
        level = engine.core.inspect(Browse(1, parent, 1000))
        pages = column(level.pages)
        below = column(level.below)
        assert below == sorted(below, reverse=True)
        assert not found.keys() & set(pages)
        found.update((page, (parent, under)) for page, under in zip(pages, below, strict=True))
        ahead += pages
    return found


def check_tree(engine: Any) -> None:
    tree, pages = whole_tree(engine), engine.core._pages
    assert set(tree) == {page for page in range(PAGES) if pages.is_known(page)}
    under: Counter[int] = Counter()
    for page in tree:
        before = tree[page][0]
        while before != NO_PARENT:
            under[before] += 1
            before = tree[before][0]
    assert {page: below for page, (_, below) in tree.items()} == {p: under[p] for p in tree}


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_random_requests_are_told_as_they_are(make_engine: Make, depth: bool, cache: str) -> None:
    engine = make_engine(
        kv_pages=PAGES,
        max_running=4,
        eviction=StrategyChoice("retention"),
        prefix_cache=StrategyChoice(cache),
    )
    rng, seen = random.Random(3), Counter[str]()
    prompts = [[600 + 50 * k + i for i in range(rng.randint(20, 90))] for k in range(4)]
    live: list[int] = []
    for at in range(160):
        what = rng.random()
        if what < 0.25 and len(live) < 10:
            tenant = rng.choice(["", "a", "b"])
            begin = rng.choice(prompts)[: rng.randint(5, 90)]
            live += engine.submit(
                [*begin, rng.randrange(50, 60)],
                n=rng.choice([1, 1, 3]),
                tenant=tenant,
                salt=tenant.encode(),
                max_tokens=rng.randint(1, 40),
                ignore_eos=True,
            )
        elif what < 0.3 and live:
            engine.core.abort([live.pop(rng.randrange(len(live)))])
        elif what < 0.42:
            prompt = np.array(rng.choice(prompts), np.int32).tobytes()
            engine.core.pin(PinPrefix(1, prompt, rng.choice([0.0, 100.0, 100.0])))
        elif what < 0.45:
            engine.run()
        elif engine.core.has_work:
            engine.step()
        live = [one for one in live if engine.answers[one].finished is None]
        seen.update(check(engine))
        if at % 4 == 0:
            check_tree(engine)
    assert set(seen) == set(PAGE_STATES), seen
    engine.run()
    assert set(check(engine)) <= set(".cp")


def test_searches_for_what_is_cached_are_bounded(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatewayd_engine.core.telemetry.inspection._MOST_MATCHED_TOKENS", 100)
    engine = make_engine(max_running=1)
    engine.generate([5] * 40, max_tokens=1)
    for length in (40, 60, 50, 60, 10):
        engine.submit([5] * length, max_tokens=1)
    rows = dict(
        zip(
            column(inspect(engine).sequences, np.int64),
            column(inspect(engine).cached),
            strict=True,
        )
    )
    assert [rows[i] >= 0 for i in sorted(rows)] == [True, True, False, False, False]


def test_drafts_are_counted_for_each_sequence(make_engine: Make) -> None:
    engine = make_engine(drafter=StrategyChoice("ngram"), spec_controller=StrategyChoice("fixed"))
    loop = [700, 701, 702, 703] * 12
    engine.submit(loop, max_tokens=60, ignore_eos=True)
    engine.submit([900, 31, 77], max_tokens=60, ignore_eos=True)
    most = [0, 0]
    while engine.core.has_work:
        engine.step()
        found = inspect(engine)
        assert all(
            a <= d for a, d in zip(column(found.accepted), column(found.drafted), strict=True)
        )
        most = max(most, [sum(column(found.drafted)), sum(column(found.accepted))])
    stats = engine.core.stats
    assert 0 < most[0] <= stats.draft_tokens
    assert most[1] <= stats.accepted_tokens


def test_tokens_are_told_of_nobody_but_of_those_without_a_tenant(make_engine: Make) -> None:
    engine = make_engine()
    prompt = list(range(300, 340))
    engine.generate(prompt, max_tokens=1)
    engine.generate(prompt, max_tokens=1, tenant="a", salt=b"a")
    level = engine.core.inspect(Browse(1))
    assert dict(zip(level.tenants, level.tokens, strict=True)) == {
        "": np.array(prompt[:16], np.int32).tobytes(),
        "a": b"",
    }
    assert column(level.counts) == [16, 16]
    (own,) = (p for p, t in zip(column(level.pages), level.tenants, strict=True) if not t)
    (second,) = column(engine.core.inspect(Browse(1, own)).pages)
    tail = engine.core.inspect(Browse(1, second))
    assert (column(tail.counts), column(tail.depths)) == ([8], [2])
    assert column(tail.tokens[0]) == prompt[32:]


def test_a_level_has_a_limit_and_the_rest_is_counted(make_engine: Make) -> None:
    engine = make_engine()
    for first in range(5):
        engine.generate([400 + first] * (17 + 16 * (first == 3)), max_tokens=1)
    level = engine.core.inspect(Browse(1, limit=2))
    assert (len(column(level.pages)), level.more) == (2, 3)
    assert column(level.tokens[0]) == [403] * 16
    assert column(level.below) == [2, 1]


def test_tiers_are_told_with_what_they_have(make_engine: Make) -> None:
    engine = make_engine(kv_pages=PAGES, kv_tiers=[host()])
    engine.generate(list(range(300, 364)), max_tokens=1)
    assert inspect(engine).tiers == {"host": 0}
    evict_all(engine)
    assert inspect(engine).tiers == {"host": 4}


# By themselves


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 3)), min_size=1, max_size=60),
    st.integers(1, 20),
)
def test_many_pages_are_told_by_the_commonest(pages: list[tuple[int, int]], most: int) -> None:
    states, owners = (np.array(c, t) for c, t in zip(zip(*pages), (np.uint8, np.int32)))  # noqa: B905
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gatewayd_engine.core.telemetry.inspection.MOST_CELLS", most)
        each, cells, whose = _cells(states, owners)
    assert len(cells) <= most
    assert len(cells) == -(-len(pages) // each)
    for at, (cell, owner) in enumerate(zip(cells.tolist(), whose.tolist(), strict=True)):
        block = pages[at * each : (at + 1) * each]
        counts = Counter(state for state, _ in block)
        assert counts[cell] == max(counts.values())
        assert owner == next(o for state, o in block if state == cell)


@given(st.lists(st.integers(-1, 40), min_size=1, max_size=40), st.integers(-1, 39))
def test_pages_below_are_counted_at_any_distance(before: list[int], of: int) -> None:
    parents = [min(parent, page - 1) for page, parent in enumerate(before)]
    below = Counter[int]()
    siblings = [page for page, parent in enumerate(parents) if parent == of]
    for page in range(len(parents)):
        at = page
        while at != NO_PARENT and at not in siblings:
            at = parents[at]
        if at != NO_PARENT and at != page:
            below[at] += 1
    known = np.ones(len(parents), np.bool_)
    column = np.array(parents, np.int32)
    found = _below(column, known, column == of)
    assert [found[page] for page in siblings] == [below[page] for page in siblings]


def large(num_pages: int, running: int, each: int) -> Inspection:
    """A full pool, half held and half cached, without an engine."""
    plan: Any = SimpleNamespace(
        cached=None, num_evictable=lambda: 0, pinned=lambda: range(0, num_pages, 50)
    )
    pages = Pages(num_pages, plan)
    queue = Queue(256, 2048, running, 16, lambda slot: 0)
    taken = [pages._free.pop() for _ in range(num_pages)]
    for number in range(running):
        prompt: NDArray[np.int32] = np.zeros(16, np.int32)
        sequence = Sequence(
            number,
            prompt,
            SamplingParams(1),
            salt=b"",
            tenant=f"t{number % 20}",
            priority=1,
            seed=1,
            limit=16,
            submitted=0.0,
        )
        slot = queue.add(sequence)
        queue.row[slot] = number
        queue.start_running(slot)
        own = [taken.pop() for _ in range(each)]
        queue.num_pages[slot] = each
        for page in own:
            pages._refs[page] = 1
            pages._owners[page] = number % 20
    before = NO_PARENT
    for depth, page in enumerate(taken):
        pages._known[page] = 1
        pages._owners[page] = depth % 20
        pages.record_origin(page, PageOrigin(before, depth % 100))
        before = page if depth % 100 < 99 else NO_PARENT
    placement: Any = SimpleNamespace(prefixes=SimpleNamespace(uncached=lambda slot: 0))
    strategies: Any = SimpleNamespace(plan=plan, tiers=SimpleNamespace(num_pages=dict[str, int]))
    return Inspection(queue, pages, placement, strategies, UsageMeter("cpu"))


def test_looking_takes_little_of_the_engines_time() -> None:
    inspection = large(20_000, 256, 40)
    took, found = [], None
    for _ in range(10):
        began = time.thread_time()
        found = inspection.look(1)
        took.append(time.thread_time() - began)
    assert found is not None
    assert sum(found.pool.counts) == 20_000
    print(f"{1000 * min(took):.2f} ms, {1000 * sorted(took)[5]:.2f} ms as a rule")
    assert min(took) < 0.01


def test_a_million_pages_are_a_few_thousand_cells() -> None:
    states, owners = np.zeros(10**6, np.uint8), np.zeros(10**6, np.int32)
    each, cells, whose = _cells(states, owners)
    assert (each, len(cells), len(whose)) == (245, 4082, 4082)
    assert len(cells) <= MOST_CELLS


def test_what_a_plugin_says_of_pins_is_looked_at(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Retention, "pinned", lambda self: [PAGES])
    engine = make_engine(eviction=StrategyChoice("retention"), kv_pages=PAGES)
    engine.generate(list(range(300, 340)), max_tokens=1)
    assert set(inspect(engine).pool.cells.decode()) == set(".c")
    assert engine.core.stats.faults == 1
    assert isinstance(engine.core.inspect(Browse(1)), Browsed)
