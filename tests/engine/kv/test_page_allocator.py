"""Page allocator: equals a naive model over random operations."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gatewayd_engine.kv.page_allocator import OutOfPages, PageInvariantError, Pages
from gatewayd_hooks.caching import PageOrigin
from gatewayd_hooks.host.plan import StepPlan, bind

TOTAL = 12


class Oldest:
    """Evicts what was released first; refuses anything out of order."""

    def __init__(self) -> None:
        self.order: list[int] = []

    def open(self, resources: object) -> None:
        pass

    def close(self) -> None:
        pass

    def release(self, page: int) -> None:
        assert page not in self.order
        self.order.append(page)

    def reuse(self, page: int) -> None:
        self.order.remove(page)

    def victim(self) -> int:
        if not self.order:
            raise LookupError
        return self.order.pop(0)

    def drop(self, page: int) -> None:
        self.order.remove(page)

    def __len__(self) -> int:
        return len(self.order)


def plan_of(forget: Callable[[int], None] | None) -> StepPlan:
    """A plan whose eviction is ``Oldest``; nothing but pages is asked of it."""
    unasked: Any = SimpleNamespace(plan=None, enqueue=None, dequeue=None, victim=None)
    plan = bind(
        scheduler=unasked,
        prefix_cache=None,
        eviction=Oldest(),
        preemption=unasked,
        processors=(),
    )
    return dataclasses.replace(plan, forget=forget)


class PagesMachine(RuleBasedStateMachine):
    """Sequences take, share and give back pages; some pages become known."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: list[int] = []
        self.pages = Pages(TOTAL, plan_of(self.forgotten.append))
        self.holders: list[list[int]] = []
        self.known: set[int] = set()
        self.evictions = 0

    @property
    def held(self) -> Counter[int]:
        return Counter(page for pages in self.holders for page in pages)

    @rule()
    def take(self) -> None:
        free = TOTAL - len(self.held)
        if not free:
            with pytest.raises(OutOfPages):
                self.pages.allocate()
            return
        before = set(range(TOTAL)) - set(self.held)
        page = self.pages.allocate()
        assert page in before
        if page in self.known:
            # A page nobody knows would have been free, and free ones go first.
            assert before <= self.known
            assert self.forgotten.pop() == page
            self.known.discard(page)
            self.evictions += 1
        assert not self.forgotten
        self.holders.append([page])

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def share_all_of_a_holder(self, data: st.DataObject) -> None:
        pages = data.draw(st.sampled_from(self.holders))
        for page in pages:
            self.pages.share(page)
        self.holders.append(list(pages))

    @rule(data=st.data())
    def revive_cached(self, data: st.DataObject) -> None:
        cached = sorted(self.known - set(self.held))
        if cached:
            page = data.draw(st.sampled_from(cached))
            self.pages.share(page)
            self.holders.append([page])

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def learn(self, data: st.DataObject) -> None:
        pages = data.draw(st.sampled_from(self.holders))
        self.pages.mark_known(pages)
        self.known |= set(pages)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        pages = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        self.pages.release(pages)

    @rule(data=st.data())
    def drop_cached(self, data: st.DataObject) -> None:
        cached = sorted(self.known - set(self.held))
        if cached:
            page = data.draw(st.sampled_from(cached))
            self.pages.uncache(page)
            assert self.forgotten.pop() == page
            self.known.discard(page)

    @rule()
    def replace_eviction(self) -> None:
        self.pages.replace_eviction(plan_of(self.forgotten.append))

    @rule()
    def replace_prefix_cache(self) -> None:
        given_up: list[int] = []
        self.pages.on_evict = given_up.append
        self.pages.replace_prefix_cache(plan_of(self.forgotten.append))
        self.pages.on_evict = None
        assert sorted(given_up) == sorted(self.known - set(self.held))
        self.known.clear()

    @invariant()
    def accounts_add_up(self) -> None:
        self.pages.check(self.holders)
        held = set(self.held)
        assert self.pages.evictions == self.evictions
        assert self.pages.num_referenced == len(held)
        assert self.pages.num_cached == len(self.known - held)
        assert self.pages.num_free == TOTAL - len(held | self.known)
        assert {p for p in range(TOTAL) if self.pages.is_shared(p)} == {
            page for page, count in self.held.items() if count > 1
        }


TestPagesMachine = PagesMachine.TestCase
TestPagesMachine.settings = settings(stateful_step_count=60)


def test_free_used_and_cached_add_up_over_a_hundred_thousand_operations() -> None:
    rng = random.Random(0)
    pages = Pages(64, plan_of(lambda page: None))
    holders: list[list[int]] = []
    for step in range(100_000):
        roll = rng.random()
        if roll < 0.45 and pages.num_available:
            holders.append([pages.allocate()])
        elif roll < 0.6 and holders:
            chosen = rng.choice(holders)
            for page in chosen:
                pages.share(page)
            holders.append(list(chosen))
        elif roll < 0.7 and holders:
            pages.mark_known(rng.choice(holders))
        elif holders:
            pages.release(holders.pop(rng.randrange(len(holders))))
        assert pages.num_free + pages.num_cached + pages.num_referenced == 64
        if step % 500 == 0:
            pages.check(holders)
    pages.check(holders)


@pytest.mark.parametrize("seed", range(10))
def test_what_goes_on_from_a_page_is_found_whoever_had_the_page_before(seed: int) -> None:
    rng, pages = random.Random(seed), Pages(TOTAL, plan_of(lambda page: None))
    born: dict[int, int] = {}
    parent: dict[int, tuple[int, int]] = {}  # a page, and when that became known
    depth: dict[int, int] = {}
    for now in range(300):
        cached = [page for page in born if not pages.is_referenced(page)]
        if cached and (not pages.num_free or rng.random() < 0.4):
            page = rng.choice(cached)
            pages.uncache(page)
            del born[page], depth[page]
        elif pages.num_free:
            page, before = pages.allocate(), rng.choice([-1, *born])
            born[page], parent[page] = now, (before, born.get(before, -1))
            depth[page] = depth.get(before, -1) + 1
            pages.mark_known([page])
            pages.record_origin(page, PageOrigin(before, depth[page]))
            pages.release([page])
        for page in born:
            behind = {page}
            for _ in born:
                behind |= {
                    one
                    for one, (before, since) in parent.items()
                    if one in born and before in behind and born.get(before) == since
                }
            found = pages.descendants(page)
            assert set(found) == behind
            assert len(found) == len(behind)
            places = {one: at for at, one in enumerate(found)}
            assert all(places[one] < places[parent[one][0]] for one in found if one != page), (
                "the ends come first"
            )
        assert sorted(pages.cached_pages(None)) == sorted(born)
    pages.check([])


def test_only_what_is_cached_can_be_dropped() -> None:
    pages = Pages(4, plan_of(lambda page: None))
    page = pages.allocate()
    for wrong in (page, 3):
        with pytest.raises(ValueError, match="cannot be evicted"):
            pages.uncache(wrong)


def test_check_sees_a_page_that_was_lost() -> None:
    pages = Pages(4, plan_of(None))
    page = pages.allocate()
    with pytest.raises(PageInvariantError, match="references differ"):
        pages.check([])
    pages.check([[page]])
    pages._free.pop()
    with pytest.raises(PageInvariantError, match="are not 4"):
        pages.check([[page]])
