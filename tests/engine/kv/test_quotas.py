"""KV quotas: floors and ceilings equal a naive model over random operations.

The model keeps one list of cached pages in the order of their release, and searches it: the first
page goes that is not among the kept ones of another tenant. Of a tenant's, the first to be
released is always the first to go.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gatewayd_engine.kv.page_allocator import OutOfPages, OverCeiling, Pages
from gatewayd_engine.kv.quotas import NO_TENANT, PageQuota
from tests.engine.kv.test_page_allocator import plan_of

TOTAL = 10
TENANTS = (0, 1, 2)


class Machine:
    """Tenants take, share and give back pages; bounds come, change and go."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.forgotten: list[int] = []
        self.pages = Pages(TOTAL, plan_of(self.forgotten.append))
        self.bounds: dict[int, PageQuota] = {}
        self.holders: list[list[int]] = []
        self.owner: dict[int, int] = {}
        self.known: set[int] = set()
        self.released: list[int] = []  # cached pages, the first to be released first

    @property
    def held(self) -> set[int]:
        return {page for pages in self.holders for page in pages}

    def of(self, tenant: int) -> PageQuota:
        return self.bounds.get(tenant, PageQuota())

    def may_go(self, page: int, taker: int) -> bool:
        owner = self.owner[page]
        cached = sum(self.owner[one] == owner for one in self.released)
        return taker in (owner, NO_TENANT) or cached > self.of(owner).floor

    def step(self) -> None:
        """Something that may happen."""
        rng = self.rng
        does = rng.choices(
            ("take", "share", "revive", "drop", "give_back", "bound", "replace_eviction"),
            (12, 3, 2, 1, 10, 1, 0.3),
        )
        match does[0]:
            case "take":
                self.take(rng.choice((*TENANTS, *TENANTS, NO_TENANT)))
            case "share" if self.holders:
                self.share(rng.choice(self.holders))
            case "revive" if self.released:
                self.revive(rng.choice(self.released))
            case "drop" if self.released:
                self.drop(rng.choice(self.released))
            case "give_back" if self.holders:
                self.give_back(rng.randrange(len(self.holders)), learns=rng.random() < 0.8)
            case "bound":
                chosen = rng.sample(TENANTS, rng.randint(0, 3))
                ceilings = (None, None, *range(1, TOTAL))
                self.bound({t: PageQuota(rng.randint(0, 4), rng.choice(ceilings)) for t in chosen})
            case "replace_eviction":
                self.replace_eviction()
        self.check()

    def take(self, tenant: int) -> None:
        holds = sum(self.owner[page] == tenant for page in self.held)
        ceiling = self.of(tenant).ceiling
        if ceiling is not None and holds >= ceiling:
            with pytest.raises(OverCeiling):
                self.pages.allocate(tenant)
            return
        others = [page for page in self.released if self.may_go(page, tenant)]
        num_free = TOTAL - len(self.held) - len(self.released)
        can_give = (
            num_free
            + len(self.released)
            - sum(
                min(self.of(one).floor, sum(self.owner[page] == one for page in self.released))
                for one in TENANTS
                if tenant not in (one, NO_TENANT)
            )
        )
        assert self.pages.available(tenant) == can_give
        if not num_free and not others:
            with pytest.raises(OutOfPages):
                self.pages.allocate(tenant)
            return
        page = self.pages.allocate(tenant)
        assert page not in self.held
        if num_free:
            assert page not in self.released
        else:
            assert self.may_go(page, tenant)
            same = [one for one in self.released if self.owner[one] == self.owner[page]]
            assert page == same[0], "the first of its tenant's goes first"
            if not self.bounds or all(not one.floor for one in self.bounds.values()):
                assert page == self.released[0]
            assert self.forgotten.pop() == page
            self.released.remove(page)
            self.known.discard(page)
        self.owner[page] = tenant
        self.holders.append([page])

    def share(self, pages: list[int]) -> None:
        for page in pages:
            self.pages.share(page)
        self.holders.append(list(pages))

    def revive(self, page: int) -> None:
        self.pages.share(page)
        self.released.remove(page)
        self.holders.append([page])

    def drop(self, page: int) -> None:
        self.pages.uncache(page)
        assert self.forgotten.pop() == page
        self.released.remove(page)
        self.known.discard(page)

    def give_back(self, at: int, *, learns: bool) -> None:
        pages = self.holders.pop(at)
        if learns:
            self.pages.mark_known(pages)
            self.known |= set(pages)
        self.pages.release(pages)
        left = self.held
        self.released += [page for page in pages if page not in left and page in self.known]

    def bound(self, bounds: dict[int, PageQuota]) -> None:
        # What was set aside is behind what was not, from here on.
        self.pages.set_quotas({})
        self.released = list(self.pages._plan.evict.__self__.order)  # type: ignore[attr-defined]
        self.pages.set_quotas(bounds)
        self.bounds = bounds

    def replace_eviction(self) -> None:
        self.pages.replace_eviction(plan_of(self.forgotten.append))
        self.released.sort(reverse=True)

    def check(self) -> None:
        self.pages.check(self.holders)
        assert self.pages.num_referenced == len(self.held)
        assert self.pages.num_cached == len(self.released)
        if (quotas := self.pages.quotas) is not None:
            whose = Counter(self.owner[page] for page in self.held)
            assert {t: n for t, n in quotas.referenced.items() if n} == whose


@pytest.mark.parametrize("seed", range(20))
def test_pages_are_kept_and_bounded_as_a_search_through_all_of_them_says(seed: int) -> None:
    machine = Machine(seed)
    for _ in range(400):
        machine.step()
