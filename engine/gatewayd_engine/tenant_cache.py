"""A cache that tenants share: nobody finds what another has put there, or evicts it by having more.

Where it is full, the tenant that has most loses what it has not used for longest. One alone has all
of it; one that has less than an equal share loses nothing to others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TenantCache(Generic[K, V]):
    """Keeps what was asked for last, by tenant.

    Args:
        most: entries of all tenants.
        most_weight: what these may weigh together.
        weight_of: an entry's weight by now; it may have grown.
    """

    def __init__(self, most: int, most_weight: float, weight_of: Callable[[V], float]) -> None:
        self._most = most
        self._most_weight = most_weight
        self._weight_of = weight_of
        self._kept: dict[str, OrderedDict[K, V]] = {}

    def __len__(self) -> int:
        """Entries of all tenants."""
        return sum(map(len, self._kept.values()))

    def get(self, tenant: str, key: K) -> V | None:
        """A tenant's own entry, which is the last that it has used now."""
        kept = self._kept.get(tenant)
        if kept is None or (found := kept.get(key)) is None:
            return None
        kept.move_to_end(key)
        return found

    def put(self, tenant: str, key: K, value: V) -> None:
        """Keep an entry as the last that its tenant has used, and evict where there is no room.

        It goes itself where it alone is more than its tenant may have beside the others.
        """
        kept = self._kept.setdefault(tenant, OrderedDict())
        kept[key] = value
        kept.move_to_end(key)
        self._evict()

    def drop(self, tenant: str, key: K) -> None:
        """Keep a tenant's entry no more, if there is one."""
        kept = self._kept.get(tenant)
        if kept is not None:
            kept.pop(key, None)
            if not kept:
                del self._kept[tenant]

    def clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()

    def values(self) -> Iterator[V]:
        """What is kept."""
        for kept in self._kept.values():
            yield from kept.values()

    def _evict(self) -> None:
        weights = {
            tenant: sum([self._weight_of(value) for value in kept.values()])
            for tenant, kept in self._kept.items()
        }
        count, weight = len(self), sum(weights.values())
        while count > self._most or weight > self._most_weight:
            tenant = max(weights, key=lambda one: (self._share(one, weights[one]), one))
            kept = self._kept[tenant]
            _, value = kept.popitem(last=False)
            gone = self._weight_of(value)
            count, weight = count - 1, weight - gone
            weights[tenant] -= gone
            if not kept:
                del self._kept[tenant], weights[tenant]

    def _share(self, tenant: str, weight: float) -> float:
        """Of what there is most scarce of."""
        return max(len(self._kept[tenant]) / self._most, weight / self._most_weight)
