"""Page allocator: reference counts, the free list, and cached pages.

A page is free, referenced or cached. A cached page has no references, but the
prefix cache maps to it and the eviction strategy orders it. After every call
``num_free + num_cached + num_referenced == num_pages``; ``check`` verifies it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.kv.page_tree import NO_PARENT, PageTree
from gatewayd_engine.kv.quotas import NO_TENANT, PageQuota, Quotas
from gatewayd_engine.process.plugin_faults import attribute_faults
from gatewayd_hooks.caching import PageOrigin
from gatewayd_hooks.host.plan import StepPlan
from gatewayd_hooks.strategy import Kind


class OutOfPages(Exception):
    """No page is free and none can be evicted."""


class OverCeiling(OutOfPages):
    """The tenant is at its ceiling; free pages do not help."""


class PageInvariantError(Exception):
    """The page accounts are inconsistent: a bug in the engine."""


class Pages:
    """Reference-counted pages ``0 .. num_pages - 1``.

    Args:
        num_pages: pages of the pool.
        plan: the eviction strategy, which orders the cached pages, and the prefix cache, which is
            notified of evicted pages.

    Attributes:
        on_evict: called with a page before it is evicted for another use.
        on_uncached: called with a page that is not cached any more.
        tree: parents, depths and hits of cached pages.
        defers: whether released pages stay referenced until ``release_deferred``: a step launched
            before may still write to them, and transfers do not wait for it.
        quotas: page quotas of tenants; None if no tenant has one.
        evictions: number of evicted pages.
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
        "on_uncached",
        "quotas",
        "tree",
    )

    def __init__(self, num_pages: int, plan: StepPlan) -> None:
        self.num_pages = num_pages
        self._plan = plan
        self.on_evict: Callable[[int], None] | None = None
        self.on_uncached: Callable[[int], None] | None = None
        self.defers = False
        self._deferred: list[list[int]] = []
        # A stack: the page released last is reused first, and page 0 is the first of all.
        self._free = list(range(num_pages - 1, -1, -1))
        # Arrays of the standard library: single entries are cheaper to read and write than numpy's,
        # and numpy reads them as a whole for inspection.
        self._refs = array("i", [0]) * num_pages
        self._known = bytearray(num_pages)
        # Kept for a new eviction strategy.
        self._origins: list[PageOrigin | None] = [None] * num_pages
        # Tenant that allocated each page last: for quotas set later, and for inspection.
        self._owners = array("i", [NO_TENANT]) * num_pages
        self.quotas: Quotas | None = None
        self.evictions = 0
        self.tree = PageTree(num_pages)

    @property
    def num_free(self) -> int:
        """Pages without contents."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Unreferenced pages in the prefix cache."""
        protected = 0 if self.quotas is None else self.quotas.num_protected
        return self._plan.num_evictable() + protected

    @property
    def num_referenced(self) -> int:
        """Pages with references."""
        return self.num_pages - len(self._free) - self.num_cached

    @property
    def num_available(self) -> int:
        """Pages that can be allocated if no tenant's floor applies."""
        return len(self._free) + self.num_cached

    def available(self, tenant: int) -> int:
        """Return the pages that can be allocated for a tenant, apart from its ceiling."""
        if self.quotas is None:
            return self.num_available
        return self.num_available - self.quotas.reserved_from(tenant)

    def allocate(self, tenant: int = NO_TENANT) -> int:
        """Allocate a page, evicting a cached one if none is free.

        Args:
            tenant: number of the tenant whose sequence needs it.

        Raises:
            OverCeiling: the tenant is at its ceiling.
            OutOfPages: all pages are referenced, or reserved by floors of other tenants.
        """
        quotas = self.quotas
        # Before anything is evicted, because evicting would not help.
        if quotas is not None and quotas.is_full(tenant):
            raise OverCeiling
        if self._free:
            page = self._free.pop()
        elif self.available(tenant) > 0:
            page = self._choose_evicted(tenant)
            self.evictions += 1
            # While the page still has its contents: KV tiers may store them.
            if self.on_evict is not None:
                self.on_evict(page)
            self._known[page] = 0
            self._origins[page] = None
            if self.on_uncached is not None:
                self.on_uncached(page)
            # If this raises, the page is in no list until `replace_prefix_cache`.
            if self._plan.forget is not None:
                self._plan.forget(page)
        else:
            raise OutOfPages
        self._refs[page] = 1
        self._owners[page] = tenant
        if quotas is not None:
            quotas.record_referenced(tenant)
        return page

    def _choose_evicted(self, tenant: int) -> int:
        """Return the page to evict: the strategy's choice, or one that was protected before."""
        plan, quotas = self._plan, self.quotas
        with attribute_faults(Kind.EVICTION):
            while quotas is None or plan.num_evictable():
                page = plan.evict()
                if not self.is_known(page) or self._refs[page]:
                    raise ValueError(f"evicted page {page}, which is not cached")
                if quotas is None:
                    return page
                # None if a floor protects the page, which is set aside: ask the strategy again.
                chosen = quotas.apply_floor(page, self._owners[page], tenant)
                if chosen is not None:
                    return chosen
            # Only pages set aside are left, of which the tenant may evict its own.
            return quotas.next_protected(tenant)

    @property
    def can_uncache(self) -> bool:
        """Whether ``uncache`` is supported: not every eviction strategy supports it."""
        return self._plan.drop is not None

    def uncache(self, page: int) -> None:
        """Evict a given unreferenced cached page: it becomes free."""
        if self._plan.drop is None or not self.is_known(page) or self._refs[page]:
            raise ValueError(f"page {page} cannot be evicted")
        quotas, tenant = self.quotas, self._owners[page]
        # The strategy does not know pages that were set aside.
        if quotas is None or not quotas.is_protected(tenant, page):
            with attribute_faults(Kind.EVICTION):
                self._plan.drop(page)
        if quotas is not None:
            quotas.record_uncached(tenant, page)
        self._known[page] = 0
        self._origins[page] = None
        self._free.append(page)
        if self.on_uncached is not None:
            self.on_uncached(page)
        if self._plan.forget is not None:
            self._plan.forget(page)

    def share(self, page: int) -> None:
        """Add a reference to a referenced or cached page."""
        if not self._refs[page]:
            if self.quotas is None or not self.quotas.record_reused(self._owners[page], page):
                self._plan.reuse(page)
            else:
                self._return_to_eviction(page)
        # Last, so that the reference is not counted if the strategy raises.
        self._refs[page] += 1

    def _return_to_eviction(self, page: int) -> None:
        """Hand a page back to the eviction strategy that had evicted it although protected."""
        origin = self._origins[page]
        if origin is not None and self._plan.cached is not None:
            self._plan.cached(page, origin)

    def release(self, pages: list[int]) -> None:
        """Drop one reference of each page, in the given order.

        Pages released first are evicted first, so release the tail of a sequence first.
        """
        if self.defers:
            self._deferred.append(pages)
        else:
            self._drop_references(pages)

    def release_deferred(self) -> None:
        """Release deferred pages; all steps launched before their release have completed."""
        deferred, self._deferred = self._deferred, []
        for pages in deferred:
            self._drop_references(pages)

    def _drop_references(self, pages: list[int]) -> None:
        refs = self._refs
        for page in pages:
            refs[page] -= 1
        # All counts are updated before the strategy is called, because it may raise.
        for page in pages:
            if refs[page]:
                continue
            if self.quotas is not None:
                self.quotas.record_released(self._owners[page], is_cached=self._known[page] == 1)
            if self._known[page]:
                self._plan.release(page)
            else:
                self._free.append(page)

    # Quotas

    def set_quotas(self, bounds: Mapping[int, PageQuota]) -> None:
        """Replace the quotas of all tenants, by tenant number."""
        # Pages were set aside under the old floors, which may not apply under the new ones.
        self.restore_protected()
        self.quotas = Quotas(bounds) if bounds else None
        if self.quotas is not None:
            self.quotas.recount(*self._counted)

    @property
    def _counted(self) -> tuple[Sequence[int], Sequence[int], bytearray]:
        return self._owners, self._refs, self._known

    def restore_protected(self) -> None:
        """Hand protected pages back to the eviction strategy."""
        if self.quotas is None or not self.quotas.num_protected:
            return
        with attribute_faults(Kind.EVICTION):
            pages = self.quotas.drain_protected()
            # Announced parents first, by contract; released in the order in which they were set
            # aside, to be evicted in that order.
            for page in sorted(pages, key=self._depth):
                self._return_to_eviction(page)
            for page in pages:
                self._plan.release(page)

    def is_shared(self, page: int) -> bool:
        """Whether more than one sequence holds a page, so that a writer must copy it first."""
        return self._refs[page] > 1

    def num_holders(self, page: int) -> int:
        """Return the reference count of a page."""
        return self._refs[page]

    def holders(self) -> NDArray[np.int32]:
        """Return the reference counts, shape ``[num_pages]``; a copy."""
        return np.array(self._refs, np.int32)

    def owners(self) -> NDArray[np.int32]:
        """Return the tenant that allocated each page last, ``NO_TENANT`` for none; a copy."""
        return np.array(self._owners, np.int32)

    def known(self) -> NDArray[np.bool_]:
        """Whether the prefix cache maps to each page, shape ``[num_pages]``; a copy."""
        return np.array(self._known, np.bool_)

    def is_referenced(self, page: int) -> bool:
        """Whether any sequence holds a page."""
        return self._refs[page] > 0

    def is_known(self, page: int) -> bool:
        """Whether the prefix cache maps to a page."""
        return 0 <= page < self.num_pages and self._known[page] == 1

    def mark_known(self, pages: Iterable[int]) -> None:
        """Mark referenced pages as mapped to by the prefix cache."""
        for page in pages:
            self._known[page] = 1

    def record_origin(self, page: int, origin: PageOrigin) -> None:
        """Record the position of a cached page in the tree, and its retention."""
        if self._origins[page] is None:
            self.tree.add(page, origin)
        self._origins[page] = origin
        if self._plan.cached is not None:
            self._plan.cached(page, origin)

    def origin(self, page: int) -> PageOrigin | None:
        """Return the origin of a cached page; None if it is not recorded."""
        return self._origins[page]

    def cached_pages(self, tenant: int | None) -> list[int]:
        """Return the pages in the prefix cache, deepest first.

        Args:
            tenant: that allocated them; None for all.
        """
        whose = self._is_known
        if tenant is not None:
            whose = whose & (np.array(self._owners) == tenant)
        pages = np.flatnonzero(whose)
        found: list[int] = pages[np.argsort(-self.tree.depths()[pages], kind="stable")].tolist()
        return found

    def descendants(self, page: int) -> list[int]:
        """Return a cached page and its descendants, deepest first."""
        known = self._is_known
        parents = self.tree.parents(known)
        parents[~known] = NO_PARENT
        order = np.argsort(parents, kind="stable")
        sorted_parents = parents[order]
        found = [page]
        # Breadth-first: the list grows during the iteration.
        for one in found:
            first, end = np.searchsorted(sorted_parents, (one, one + 1))
            found += order[first:end].tolist()
        return found[::-1]

    @property
    def _is_known(self) -> NDArray[np.bool_]:
        return np.frombuffer(bytes(self._known), np.bool_)

    def use(self, plan: StepPlan) -> None:
        """Use other strategies that have taken over the state of their predecessors."""
        self._plan = plan

    def replace_eviction(self, plan: StepPlan) -> None:
        """Use another eviction strategy, and hand all cached pages to it."""
        self._plan = plan
        # Derived from references and known pages, whatever a failed strategy has left behind.
        self._free = []
        if self.quotas is not None:
            # This may be called after a fault that left the accounts inconsistent.
            self.quotas.drain_protected()
            self.quotas.recount(*self._counted)
        if plan.cached is not None:
            cached = [(page, origin) for page, origin in enumerate(self._origins) if origin]
            for page, origin in sorted(cached, key=lambda entry: entry[1].depth):
                plan.cached(page, origin)
        # Descending, so that the lowest free page is on top of the stack.
        for page in range(self.num_pages - 1, -1, -1):
            if self._refs[page]:
                continue
            if self._known[page]:
                plan.release(page)
            else:
                self._free.append(page)

    def replace_prefix_cache(self, plan: StepPlan) -> None:
        """Use another, empty prefix cache: cached pages are evicted.

        The first pages of prefixes are evicted last, so that KV tiers see them as most recent.

        Args:
            plan: with a fresh eviction strategy, because no cached pages remain.
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
        """Verify the accounts against the pages that sequences hold.

        Raises:
            PageInvariantError: they do not match.
        """
        counted = array("i", [0]) * self.num_pages
        # Deferred pages are still referenced, though no sequence holds them.
        for pages in (*holders, *self._deferred):
            for page in pages:
                counted[page] += 1
        if counted != self._refs:
            wrong = [p for p in range(self.num_pages) if counted[p] != self._refs[p]]
            raise PageInvariantError(f"references differ on pages {wrong[:8]}")
        if len(set(self._free)) != len(self._free):
            raise PageInvariantError("a page is free twice")
        if any(self._refs[page] or self._known[page] for page in self._free):
            raise PageInvariantError("a free page is referenced or known")
        if self.quotas is not None and not self.quotas.agrees(*self._counted):
            raise PageInvariantError("pages are counted for the wrong tenants")
        referenced = sum(1 for refs in self._refs if refs)
        if referenced + self.num_free + self.num_cached != self.num_pages:
            raise PageInvariantError(
                f"{referenced} referenced + {self.num_free} free + {self.num_cached} cached pages "
                f"are not {self.num_pages}"
            )
