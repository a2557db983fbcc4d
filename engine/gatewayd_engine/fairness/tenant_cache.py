"""A cache partitioned by tenant: no hits on, and no eviction by greed of, another tenant's entries.

When it is full, the tenant with the largest share loses its least recently used entry. A single
tenant may use all of it; one with less than an equal share loses nothing to others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TenantCache(Generic[K, V]):
    """An LRU cache for each tenant, with common limits.

    Args:
        most: maximum of entries, of all tenants.
        most_weight: maximum of their total weight.
        weight_of: the present weight of an entry.
    """

    def __init__(self, most: int, most_weight: float, weight_of: Callable[[V], float]) -> None:
        self._most = most
        self._most_weight = most_weight
        self._weight_of = weight_of
        self._kept: dict[str, OrderedDict[K, tuple[V, float]]] = {}
        self._weights: dict[str, float] = {}

    def __len__(self) -> int:
        """Number of entries of all tenants."""
        return sum(map(len, self._kept.values()))

    def get(self, tenant: str, key: K) -> V | None:
        """A tenant's entry, which becomes its most recently used; None if it has none."""
        kept = self._kept.get(tenant)
        if kept is None or (found := kept.get(key)) is None:
            return None
        kept.move_to_end(key)
        return found[0]

    def put(self, tenant: str, key: K, value: V) -> None:
        """Insert an entry as its tenant's most recently used, and evict beyond the limits.

        The entry itself is evicted if it alone exceeds what its tenant may have beside the others.
        """
        self.drop(tenant, key)
        weight = self._weight_of(value)
        self._kept.setdefault(tenant, OrderedDict())[key] = value, weight
        self._weights[tenant] = self._weights.get(tenant, 0) + weight
        self._evict()

    def drop(self, tenant: str, key: K) -> None:
        """Remove a tenant's entry, if there is one."""
        kept = self._kept.get(tenant)
        if kept is not None and (found := kept.pop(key, None)) is not None:
            self._lose(tenant, found[1])

    def clear(self) -> None:
        """Remove all entries."""
        self._kept.clear()
        self._weights.clear()

    def values(self) -> Iterator[V]:
        """All cached values."""
        for kept in self._kept.values():
            for value, _ in kept.values():
                yield value

    def weigh(self) -> None:
        """Update all weights, which may have grown; the next ``put`` evicts the excess."""
        for tenant, kept in self._kept.items():
            for key, (value, _) in kept.items():
                kept[key] = value, self._weight_of(value)
            self._weights[tenant] = sum([weight for _, weight in kept.values()])

    def _evict(self) -> None:
        count, weight = len(self), sum(self._weights.values())
        while count > self._most or weight > self._most_weight:
            tenant = max(self._kept, key=self._share)
            _, (_, gone) = self._kept[tenant].popitem(last=False)
            self._lose(tenant, gone)
            count, weight = count - 1, weight - gone

    def _lose(self, tenant: str, weight: float) -> None:
        if self._kept[tenant]:
            self._weights[tenant] -= weight
        else:
            del self._kept[tenant], self._weights[tenant]

    def _share(self, tenant: str) -> tuple[float, str]:
        """The tenant's dominant share, of count or weight; ties are broken by name."""
        weight = self._weights[tenant] / self._most_weight
        return max(len(self._kept[tenant]) / self._most, weight), tenant
