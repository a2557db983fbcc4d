"""A cache partitioned by tenant: no hits on, and no unfair eviction of, other tenants' entries.

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
        weight_of: returns the current weight of an entry.
    """

    def __init__(self, most: int, most_weight: float, weight_of: Callable[[V], float]) -> None:
        self._most = most
        self._most_weight = most_weight
        self._weight_of = weight_of
        self._entries: dict[str, OrderedDict[K, tuple[V, float]]] = {}
        self._weights: dict[str, float] = {}

    def __len__(self) -> int:
        """Number of entries of all tenants."""
        return sum(map(len, self._entries.values()))

    def get(self, tenant: str, key: K) -> V | None:
        """Return a tenant's entry and make it the most recently used; None if it has none."""
        entries = self._entries.get(tenant)
        if entries is None or (found := entries.get(key)) is None:
            return None
        entries.move_to_end(key)
        return found[0]

    def put(self, tenant: str, key: K, value: V) -> None:
        """Insert an entry as its tenant's most recently used, and evict beyond the limits.

        The entry itself is evicted if it alone exceeds what its tenant may use besides others.
        """
        # Replaces an entry of the same key together with its weight.
        self.remove(tenant, key)
        weight = self._weight_of(value)
        self._entries.setdefault(tenant, OrderedDict())[key] = value, weight
        self._weights[tenant] = self._weights.get(tenant, 0) + weight
        self._evict()

    def remove(self, tenant: str, key: K) -> None:
        """Remove a tenant's entry, if there is one."""
        entries = self._entries.get(tenant)
        if entries is not None and (found := entries.pop(key, None)) is not None:
            self._subtract(tenant, found[1])

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._weights.clear()

    def values(self) -> Iterator[V]:
        """Iterate over all cached values."""
        for entries in self._entries.values():
            for value, _ in entries.values():
                yield value

    def weigh(self) -> None:
        """Update all weights, which may have grown; the next ``put`` evicts the excess."""
        for tenant, entries in self._entries.items():
            for key, (value, _) in entries.items():
                entries[key] = value, self._weight_of(value)
            self._weights[tenant] = sum([weight for _, weight in entries.values()])

    def _evict(self) -> None:
        # Updated per eviction, because summing again each time would be quadratic.
        count, weight = len(self), sum(self._weights.values())
        while count > self._most or weight > self._most_weight:
            tenant = max(self._entries, key=self._share)
            _, (_, evicted) = self._entries[tenant].popitem(last=False)
            self._subtract(tenant, evicted)
            count, weight = count - 1, weight - evicted

    def _subtract(self, tenant: str, weight: float) -> None:
        if self._entries[tenant]:
            self._weights[tenant] -= weight
        else:
            del self._entries[tenant], self._weights[tenant]

    def _share(self, tenant: str) -> tuple[float, str]:
        """Return the tenant's dominant share, of count or weight; ties are broken by name."""
        weight = self._weights[tenant] / self._most_weight
        return max(len(self._entries[tenant]) / self._most, weight), tenant
