"""Who holds which page: reference counts, the free list, and the cached pages.

A page is free, held or cached. Held pages have references. A cached page has none, but the
prefix cache knows its content and the eviction strategy orders it. After every call
``num_free + num_cached + num_held == num_pages``; ``check`` verifies it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.kv.page_tree import NOTHING, PageTree
from gatewayd_engine.kv.quotas import NOBODY, PageQuota, Quotas
from gatewayd_engine.process.plugin_faults import blame
from gatewayd_hooks.caching import PageOrigin
from gatewayd_hooks.host.plan import StepPlan
from gatewayd_hooks.strategy import Kind


class OutOfPages(Exception):
    """No page is free and none can be evicted."""


class OverCeiling(OutOfPages):
    """The tenant's sequences hold all that they may; others' pages do not help."""


class PageInvariantError(Exception):
    """The page accounts do not add up: a fault of ours."""


class Pages:
    """Reference-counted pages ``0 .. num_pages - 1``.

    Args:
        num_pages: how many there are.
        plan: with the eviction, which orders the cached pages, and the prefix cache, which is
            told when one of them is given to someone else.

    Attributes:
        on_evict: told of a page before somebody else gets it.
        on_forget: told of a page whose content is not known any more.
        standing: where known pages stand, and whose they are.
        defers: whether pages that are given back stay held until ``settle``: a step that was
            launched before may write to them, and copies to and from elsewhere do not wait for it.
        quotas: what tenants may have; None while none of them is bounded.
        evictions: cached pages that somebody else got, so far.
    """

    __slots__ = (
        "_deferred",
        "_free",
        "_known",
        "_origins",
        "_owners",
        "_plan",
        "_refs",
        "defers",
        "evictions",
        "num_pages",
        "on_evict",
        "on_forget",
        "quotas",
        "standing",
    )

    def __init__(self, num_pages: int, plan: StepPlan) -> None:
        self.num_pages = num_pages
        self._plan = plan
        self.on_evict: Callable[[int], None] | None = None
        self.on_forget: Callable[[int], None] | None = None
        self.defers = False
        self._deferred: list[list[int]] = []
        self._free = list(range(num_pages - 1, -1, -1))
        self._refs = array("i", [0]) * num_pages
        self._known = bytearray(num_pages)
        # Kept for evictions that come later.
        self._origins: list[PageOrigin | None] = [None] * num_pages
        # By whom each was taken last: for quotas that come later, and for who looks.
        self._owners = array("i", [NOBODY]) * num_pages
        self.quotas: Quotas | None = None
        self.evictions = 0
        self.standing = PageTree(num_pages)

    @property
    def num_free(self) -> int:
        """Pages with nothing in them."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Pages nobody holds whose content is known."""
        aside = 0 if self.quotas is None else self.quotas.num_aside
        return self._plan.num_evictable() + aside

    @property
    def num_held(self) -> int:
        """Pages with references."""
        return self.num_pages - len(self._free) - self.num_cached

    @property
    def num_available(self) -> int:
        """Pages that ``take`` can give whom no floor holds against."""
        return len(self._free) + self.num_cached

    def available(self, tenant: int) -> int:
        """Pages that ``take`` can give a tenant, apart from its ceiling."""
        if self.quotas is None:
            return self.num_available
        return self.num_available - self.quotas.kept_from(tenant)

    def take(self, tenant: int = NOBODY) -> int:
        """Hold a page nobody holds, evicting a cached one if none is free.

        Args:
            tenant: whose sequence needs it.

        Raises:
            OverCeiling: the tenant holds all that it may.
            OutOfPages: all are held, or kept for others.
        """
        quotas = self.quotas
        if quotas is not None and quotas.is_full(tenant):
            raise OverCeiling
        if self._free:
            page = self._free.pop()
        elif self.available(tenant) > 0:
            page = self._evicted(tenant)
            self.evictions += 1
            if self.on_evict is not None:
                self.on_evict(page)
            self._known[page] = 0
            self._origins[page] = None
            if self.on_forget is not None:
                self.on_forget(page)
            if self._plan.forget is not None:
                self._plan.forget(page)
        else:
            raise OutOfPages
        self._refs[page] = 1
        self._owners[page] = tenant
        if quotas is not None:
            quotas.took(tenant)
        return page

    def _evicted(self, tenant: int) -> int:
        """A page that the eviction gives up, or one that was set aside."""
        plan, quotas = self._plan, self.quotas
        with blame(Kind.EVICTION):
            while quotas is None or plan.num_evictable():
                page = plan.evict()
                if not self.is_known(page) or self._refs[page]:
                    raise ValueError(f"gave up page {page}, which is not cached")
                if quotas is None:
                    return page
                chosen = quotas.chosen(page, self._owners[page], tenant)
                if chosen is not None:
                    return chosen
            return quotas.own(tenant)

    @property
    def may_drop(self) -> bool:
        """Whether ``drop`` can be called: not every eviction gives up what it has not chosen."""
        return self._plan.drop is not None

    def drop(self, page: int) -> None:
        """Give up a cached page that nobody holds: it is free, and its content not known."""
        if self._plan.drop is None or not self.is_known(page) or self._refs[page]:
            raise ValueError(f"page {page} cannot be dropped")
        quotas, tenant = self.quotas, self._owners[page]
        if quotas is None or not quotas.is_aside(tenant, page):
            with blame(Kind.EVICTION):
                self._plan.drop(page)
        if quotas is not None:
            quotas.dropped(tenant, page)
        self._known[page] = 0
        self._origins[page] = None
        self._free.append(page)
        if self.on_forget is not None:
            self.on_forget(page)
        if self._plan.forget is not None:
            self._plan.forget(page)

    def share(self, page: int) -> None:
        """Add a reference to a held or cached page."""
        if not self._refs[page]:
            if self.quotas is None or not self.quotas.revived(self._owners[page], page):
                self._plan.reuse(page)
            else:
                self._tell_again(page)
        self._refs[page] += 1

    def _tell_again(self, page: int) -> None:
        """The eviction is to order a page again that it gave up once."""
        origin = self._origins[page]
        if origin is not None and self._plan.cached is not None:
            self._plan.cached(page, origin)

    def give_back(self, pages: list[int]) -> None:
        """Drop one reference of each page, in the given order.

        Pages given back first are evicted first, so give the tail of a sequence back first.
        """
        if self.defers:
            self._deferred.append(pages)
        else:
            self._release(pages)

    def settle(self) -> None:
        """Every step that was launched before pages were given back has landed."""
        deferred, self._deferred = self._deferred, []
        for pages in deferred:
            self._release(pages)

    def _release(self, pages: list[int]) -> None:
        refs = self._refs
        for page in pages:
            refs[page] -= 1
        # References are right before the strategy is told, whatever it does.
        for page in pages:
            if refs[page]:
                continue
            if self.quotas is not None:
                self.quotas.released(self._owners[page], is_cached=self._known[page] == 1)
            if self._known[page]:
                self._plan.release(page)
            else:
                self._free.append(page)

    # Quotas

    def bound(self, bounds: Mapping[int, PageQuota]) -> None:
        """Bound tenants from now on, by their numbers, and no others."""
        self.put_back_aside()
        self.quotas = Quotas(bounds) if bounds else None
        if self.quotas is not None:
            self.quotas.count(*self._counted)

    @property
    def _counted(self) -> tuple[Sequence[int], Sequence[int], bytearray]:
        return self._owners, self._refs, self._known

    def put_back_aside(self) -> None:
        """Let the eviction order again what was set aside."""
        if self.quotas is None or not self.quotas.num_aside:
            return
        with blame(Kind.EVICTION):
            pages = self.quotas.take_all_back()
            for page in sorted(pages, key=self._depth):
                self._tell_again(page)
            for page in pages:
                self._plan.release(page)

    def is_shared(self, page: int) -> bool:
        """Whether more than one sequence holds it, so that a writer must copy it first."""
        return self._refs[page] > 1

    def num_holders(self, page: int) -> int:
        """How many sequences hold it."""
        return self._refs[page]

    def holders(self) -> NDArray[np.int32]:
        """How many sequences hold each, shape ``[num_pages]``; a copy."""
        return np.array(self._refs, np.int32)

    def owners(self) -> NDArray[np.int32]:
        """By whom each was taken last, by number, ``NOBODY`` for none; a copy."""
        return np.array(self._owners, np.int32)

    def known(self) -> NDArray[np.bool_]:
        """Whether the prefix cache maps to each, shape ``[num_pages]``; a copy."""
        return np.array(self._known, np.bool_)

    def is_held(self, page: int) -> bool:
        """Whether anyone holds it."""
        return self._refs[page] > 0

    def is_known(self, page: int) -> bool:
        """Whether the prefix cache maps to it."""
        return 0 <= page < self.num_pages and self._known[page] == 1

    def mark_known(self, pages: Iterable[int]) -> None:
        """The prefix cache maps to these held pages from now on."""
        for page in pages:
            self._known[page] = 1

    def learn(self, page: int, origin: PageOrigin) -> None:
        """A known page that is held stands here; its requests may want it kept longer."""
        if self._origins[page] is None:
            self.standing.add(page, origin)
        self._origins[page] = origin
        if self._plan.cached is not None:
            self._plan.cached(page, origin)

    def origin(self, page: int) -> PageOrigin | None:
        """Where a known page stands."""
        return self._origins[page]

    def known_of(self, tenant: int | None) -> list[int]:
        """Pages that the prefix cache maps to, the ends of prefixes first.

        Args:
            tenant: who took them; None for everybody.
        """
        whose = self._is_known
        if tenant is not None:
            whose = whose & (np.array(self._owners) == tenant)
        pages = np.flatnonzero(whose)
        found: list[int] = pages[np.argsort(-self.standing.depths()[pages], kind="stable")].tolist()
        return found

    def behind(self, page: int) -> list[int]:
        """A known page and those that go on from it, the ends of prefixes first."""
        known = self._is_known
        parents = self.standing.parents(known)
        parents[~known] = NOTHING
        order = np.argsort(parents, kind="stable")
        line = parents[order]
        found = [page]
        for one in found:
            first, end = np.searchsorted(line, (one, one + 1))
            found += order[first:end].tolist()
        return found[::-1]

    @property
    def _is_known(self) -> NDArray[np.bool_]:
        return np.frombuffer(bytes(self._known), np.bool_)

    def follow(self, plan: StepPlan) -> None:
        """Ask other strategies from now on, which know what those before did."""
        self._plan = plan

    def replace_eviction(self, plan: StepPlan) -> None:
        """Order the cached pages by another strategy, which starts from what is cached now."""
        self._plan = plan
        self._free = []
        if self.quotas is not None:
            # A fault in the middle of something may be why this is called.
            self.quotas.take_all_back()
            self.quotas.count(*self._counted)
        if plan.cached is not None:
            told = [(page, origin) for page, origin in enumerate(self._origins) if origin]
            for page, origin in sorted(told, key=lambda entry: entry[1].depth):
                plan.cached(page, origin)
        for page in range(self.num_pages - 1, -1, -1):
            if self._refs[page]:
                continue
            if self._known[page]:
                plan.release(page)
            else:
                self._free.append(page)

    def replace_prefix_cache(self, plan: StepPlan) -> None:
        """Another prefix cache, which knows nothing yet: cached pages are evicted and free.

        What begins prefixes comes last, as the latest of what is kept elsewhere.

        Args:
            plan: with a fresh eviction too, for there is nothing to evict any more.
        """
        if self.on_evict is not None:
            cached = [p for p in range(self.num_pages) if self._known[p] and not self._refs[p]]
            for page in sorted(cached, key=self._depth, reverse=True):
                self.on_evict(page)
        self._known = bytearray(self.num_pages)
        self._origins = [None] * self.num_pages
        self.replace_eviction(plan)

    def _depth(self, page: int) -> int:
        origin = self._origins[page]
        return 0 if origin is None else origin.depth

    def check(self, holders: Iterable[Iterable[int]]) -> None:
        """Verify the accounts against the pages that each sequence says it holds.

        Raises:
            PageInvariantError: they do not add up.
        """
        counted = array("i", [0]) * self.num_pages
        for pages in (*holders, *self._deferred):
            for page in pages:
                counted[page] += 1
        if counted != self._refs:
            wrong = [p for p in range(self.num_pages) if counted[p] != self._refs[p]]
            raise PageInvariantError(f"references differ on pages {wrong[:8]}")
        if len(set(self._free)) != len(self._free):
            raise PageInvariantError("a page is free twice")
        if any(self._refs[page] or self._known[page] for page in self._free):
            raise PageInvariantError("a free page is held or known")
        if self.quotas is not None and not self.quotas.agrees(*self._counted):
            raise PageInvariantError("pages are counted for other tenants than hold or held them")
        held = sum(1 for refs in self._refs if refs)
        if held + self.num_free + self.num_cached != self.num_pages:
            raise PageInvariantError(
                f"{held} held + {self.num_free} free + {self.num_cached} cached pages "
                f"are not {self.num_pages}"
            )
