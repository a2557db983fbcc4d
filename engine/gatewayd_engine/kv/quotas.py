"""Page quotas of tenants: ceilings on referenced pages, and floors of protected cached pages.

A ceiling bounds the pages that a tenant's sequences hold. A floor is a number of its cached pages
that are not evicted for other tenants, only for its own. The eviction strategy does not know
tenants: if it evicts a protected page, the page is removed from its order and set aside here, in
order of eviction. So the strategy still decides which of a tenant's pages are evicted first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

NO_TENANT = -1
"""Tenant number of allocations that ignore all floors."""


class PageQuota(NamedTuple):
    """Page quota of one tenant.

    Attributes:
        floor: cached pages that are not evicted for other tenants.
        ceiling: pages that its sequences may hold; None for no limit.
    """

    floor: int = 0
    ceiling: int | None = None


NO_BOUNDS = PageQuota()


class Quotas:
    """Page counts by tenant, while any tenant has a quota.

    Args:
        bounds: quotas by tenant number.

    Attributes:
        bounds: quotas by tenant number.
        referenced: pages with references, by the tenant that allocated them.
        cached: unreferenced pages in the prefix cache, by the tenant that allocated them.
        num_protected: cached pages that are set aside, of all tenants.
    """

    __slots__ = ("_aside", "bounds", "cached", "num_protected", "referenced")

    def __init__(self, bounds: Mapping[int, PageQuota]) -> None:
        self.bounds = dict(bounds)
        self.referenced: dict[int, int] = {}
        self.cached: dict[int, int] = {}
        self._aside: dict[int, dict[int, None]] = {}
        self.num_protected = 0

    def of(self, tenant: int) -> PageQuota:
        """Return the quota of a tenant."""
        return self.bounds.get(tenant, NO_BOUNDS)

    def headroom(self, tenant: int) -> int | None:
        """Return the pages that a tenant may still allocate; None for no limit."""
        ceiling = self.of(tenant).ceiling
        return None if ceiling is None else ceiling - self.referenced.get(tenant, 0)

    def is_full(self, tenant: int) -> bool:
        """Whether a tenant is at its ceiling."""
        room = self.headroom(tenant)
        return room is not None and room <= 0

    @property
    def num_reserved(self) -> int:
        """Cached pages that are evicted only for their own tenants."""
        cached = self.cached
        # A floor protects pages that are cached; it reserves none for later (ADR 0025).
        return sum(min(one.floor, cached.get(tenant, 0)) for tenant, one in self.bounds.items())

    def reserved_from(self, tenant: int) -> int:
        """Return the cached pages that must not be evicted for a tenant."""
        if tenant == NO_TENANT:
            return 0
        return self.num_reserved - min(self.of(tenant).floor, self.cached.get(tenant, 0))

    # Counting

    def record_referenced(self, tenant: int) -> None:
        """Count a newly allocated page."""
        self.referenced[tenant] = self.referenced.get(tenant, 0) + 1

    def record_reused(self, tenant: int, page: int) -> bool:
        """Count a cached page that is referenced again; return whether it was set aside."""
        self.record_referenced(tenant)
        self.cached[tenant] -= 1
        return self._unprotect(tenant, page)

    def record_released(self, tenant: int, *, is_cached: bool) -> None:
        """Count a page without references left."""
        self.referenced[tenant] -= 1
        if is_cached:
            self.cached[tenant] = self.cached.get(tenant, 0) + 1

    def recount(self, owners: Sequence[int], refs: Sequence[int], known: Sequence[int]) -> None:
        """Recount from columns with an entry for each page."""
        self.referenced, self.cached = _counts(owners, refs, known)

    def agrees(self, owners: Sequence[int], refs: Sequence[int], known: Sequence[int]) -> bool:
        """Whether the counts match columns with an entry for each page."""
        referenced, cached = _counts(owners, refs, known)
        return referenced == _nonzero(self.referenced) and cached == _nonzero(self.cached)

    # Eviction

    def is_protected(self, tenant: int, page: int) -> bool:
        """Whether a cached page of a tenant is set aside."""
        return page in self._aside.get(tenant, ())

    def record_uncached(self, tenant: int, page: int) -> None:
        """Count a cached page of a tenant that was freed regardless of floors."""
        self._unprotect(tenant, page)
        self._count_evicted(page, tenant)

    def apply_floor(self, page: int, tenant: int, taker: int) -> int | None:
        """Decide which page is evicted when the strategy evicts one of a tenant's.

        Args:
            page: the strategy's choice, which it no longer orders.
            tenant: tenant of the page.
            taker: tenant that needs a page.

        Returns:
            That page, or the first one set aside of the same tenant; None if they are protected.
        """
        aside = self._aside.get(tenant)
        is_within_floor = taker not in (tenant, NO_TENANT) and (
            self.cached.get(tenant, 0) <= self.of(tenant).floor
        )
        if not aside and not is_within_floor:
            return self._count_evicted(page, tenant)
        if aside is None:
            aside = self._aside[tenant] = {}
        # Appended here and taken from the front: the strategy's order holds within the tenant.
        aside[page] = None
        self.num_protected += 1
        return None if is_within_floor else self._first(tenant)

    def next_protected(self, taker: int) -> int:
        """Return the first page set aside of the taker, or of any tenant for ``NO_TENANT``.

        Raises:
            LookupError: there is none.
        """
        tenants = self._aside if taker == NO_TENANT else (taker,)
        for tenant in tenants:
            if self._aside.get(tenant):
                return self._first(tenant)
        raise LookupError("no page may be evicted")

    def drain_protected(self) -> list[int]:
        """Return and clear the pages set aside, in order for each tenant."""
        pages = [page for aside in self._aside.values() for page in aside]
        self._aside.clear()
        self.num_protected = 0
        return pages

    def _first(self, tenant: int) -> int:
        page = next(iter(self._aside[tenant]))
        self._unprotect(tenant, page)
        return self._count_evicted(page, tenant)

    def _unprotect(self, tenant: int, page: int) -> bool:
        aside = self._aside.get(tenant)
        if not aside or page not in aside:
            return False
        del aside[page]
        self.num_protected -= 1
        return True

    def _count_evicted(self, page: int, tenant: int) -> int:
        self.cached[tenant] -= 1
        return page


def _counts(
    owners: Sequence[int], refs: Sequence[int], known: Sequence[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Count referenced and cached pages of each tenant."""
    referenced: Counter[int] = Counter()
    cached: Counter[int] = Counter()
    for tenant, num_refs, is_known in zip(owners, refs, known, strict=True):
        if num_refs:
            referenced[tenant] += 1
        elif is_known:
            cached[tenant] += 1
    return dict(referenced), dict(cached)


def _nonzero(counts: Mapping[int, int]) -> dict[int, int]:
    return {tenant: count for tenant, count in counts.items() if count}
