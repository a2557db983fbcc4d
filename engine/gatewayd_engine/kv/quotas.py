"""What tenants may hold of the pool, and what of their cached pages is kept for them.

A ceiling bounds the pages that a tenant's sequences hold. A floor is a number of its cached pages
that nobody else's need gives up; its own does. The eviction strategy knows no tenants: a page that
it gives up although it is protected is set aside, out of its order, in the order in which it gave
them up. So the strategy still decides which of a tenant's pages go first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

NOBODY = -1
"""Takes pages for no tenant: no floor holds against it."""


class PageQuota(NamedTuple):
    """Of one tenant, in pages.

    Attributes:
        floor: cached pages that are not given up for others.
        ceiling: pages that its sequences may hold; None for all.
    """

    floor: int = 0
    ceiling: int | None = None


NO_BOUNDS = PageQuota()


class Quotas:
    """Counts pages by tenant while any of them has bounds.

    Args:
        bounds: of tenants, by their numbers.

    Attributes:
        bounds: the same.
        held: pages with references, by the tenant that took them.
        cached: pages that nobody holds whose content is known, by the same.
        num_aside: cached pages that are set aside, of all tenants.
    """

    __slots__ = ("_aside", "bounds", "cached", "held", "num_aside")

    def __init__(self, bounds: Mapping[int, PageQuota]) -> None:
        self.bounds = dict(bounds)
        self.held: dict[int, int] = {}
        self.cached: dict[int, int] = {}
        self._aside: dict[int, dict[int, None]] = {}
        self.num_aside = 0

    def of(self, tenant: int) -> PageQuota:
        """What a tenant may have."""
        return self.bounds.get(tenant, NO_BOUNDS)

    def room(self, tenant: int) -> int | None:
        """Pages that its sequences may hold yet; None for no bound."""
        ceiling = self.of(tenant).ceiling
        return None if ceiling is None else ceiling - self.held.get(tenant, 0)

    def is_full(self, tenant: int) -> bool:
        """Whether its sequences hold all that they may."""
        room = self.room(tenant)
        return room is not None and room <= 0

    @property
    def num_kept(self) -> int:
        """Cached pages that are given up for nobody but their own tenants."""
        cached = self.cached
        return sum(min(one.floor, cached.get(tenant, 0)) for tenant, one in self.bounds.items())

    def kept_from(self, tenant: int) -> int:
        """Cached pages that must not be given up for a tenant's need."""
        if tenant == NOBODY:
            return 0
        return self.num_kept - min(self.of(tenant).floor, self.cached.get(tenant, 0))

    # Counting

    def took(self, tenant: int) -> None:
        """A page that nobody held, and that was not cached, is held for a tenant."""
        self.held[tenant] = self.held.get(tenant, 0) + 1

    def revived(self, tenant: int, page: int) -> bool:
        """A cached page of a tenant is held again; whether it was set aside."""
        self.took(tenant)
        self.cached[tenant] -= 1
        return self._take_back(tenant, page)

    def released(self, tenant: int, *, is_cached: bool) -> None:
        """Nobody holds a page of a tenant any more."""
        self.held[tenant] -= 1
        if is_cached:
            self.cached[tenant] = self.cached.get(tenant, 0) + 1

    def count(self, owners: Sequence[int], refs: Sequence[int], known: Sequence[int]) -> None:
        """Count anew, from columns with an entry for each page."""
        self.held, self.cached = _counts(owners, refs, known)

    def agrees(self, owners: Sequence[int], refs: Sequence[int], known: Sequence[int]) -> bool:
        """Whether that would change anything."""
        held, cached = _counts(owners, refs, known)
        return held == _some(self.held) and cached == _some(self.cached)

    # Giving up

    def is_aside(self, tenant: int, page: int) -> bool:
        """Whether a cached page of a tenant is set aside."""
        return page in self._aside.get(tenant, ())

    def dropped(self, tenant: int, page: int) -> None:
        """A cached page of a tenant is free, whatever is kept for it."""
        self._take_back(tenant, page)
        self._gone(page, tenant)

    def chosen(self, page: int, tenant: int, taker: int) -> int | None:
        """The eviction gives up a page of a tenant: which one goes instead.

        Args:
            page: that it gives up; it is in its order no more.
            tenant: whose it is.
            taker: who needs a page.

        Returns:
            That, or the first of the same tenant's that was set aside; None if all are protected.
        """
        aside = self._aside.get(tenant)
        is_kept = taker not in (tenant, NOBODY) and (
            self.cached.get(tenant, 0) <= self.of(tenant).floor
        )
        if not aside and not is_kept:
            return self._gone(page, tenant)
        if aside is None:
            aside = self._aside[tenant] = {}
        aside[page] = None
        self.num_aside += 1
        return None if is_kept else self._first(tenant)

    def own(self, taker: int) -> int:
        """Nothing is left but what was set aside: the first of the taker's own, or of anybody's.

        Raises:
            LookupError: there is none.
        """
        tenants = self._aside if taker == NOBODY else (taker,)
        for tenant in tenants:
            if self._aside.get(tenant):
                return self._first(tenant)
        raise LookupError("no page may be given up")

    def take_all_back(self) -> list[int]:
        """Everything that was set aside, in order for each tenant; nothing is any more."""
        pages = [page for aside in self._aside.values() for page in aside]
        self._aside.clear()
        self.num_aside = 0
        return pages

    def _first(self, tenant: int) -> int:
        page = next(iter(self._aside[tenant]))
        self._take_back(tenant, page)
        return self._gone(page, tenant)

    def _take_back(self, tenant: int, page: int) -> bool:
        aside = self._aside.get(tenant)
        if not aside or page not in aside:
            return False
        del aside[page]
        self.num_aside -= 1
        return True

    def _gone(self, page: int, tenant: int) -> int:
        self.cached[tenant] -= 1
        return page


def _counts(
    owners: Sequence[int], refs: Sequence[int], known: Sequence[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Held and cached pages of each tenant."""
    held: Counter[int] = Counter()
    cached: Counter[int] = Counter()
    for tenant, num_refs, is_known in zip(owners, refs, known, strict=True):
        if num_refs:
            held[tenant] += 1
        elif is_known:
            cached[tenant] += 1
    return dict(held), dict(cached)


def _some(counts: Mapping[int, int]) -> dict[int, int]:
    return {tenant: count for tenant, count in counts.items() if count}
