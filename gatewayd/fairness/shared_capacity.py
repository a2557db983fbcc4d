"""Capacity that tenants share by dynamic thresholds (Choudhury and Hahne, 1998).

A tenant may use as much as is left, so a single one gets half and a new one always finds some.
"""

from __future__ import annotations

from collections import Counter


class SharedCapacity:
    """Counts the capacity used by each tenant, in any unit.

    Attributes:
        most: total capacity.
        total: capacity in use.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._held = Counter[str]()

    @property
    def left(self) -> int:
        """Capacity that is not in use."""
        return self.most - self.total

    def held(self, tenant: str) -> int:
        """Capacity used by a tenant."""
        return self._held[tenant]

    def is_over_share(self, tenant: str, amount: int) -> bool:
        """Whether a tenant would, with this amount, use more than is left."""
        return self._held[tenant] + amount > self.left

    def reserve(self, tenant: str, amount: int) -> None:
        """Reserve capacity for a tenant, even beyond its share."""
        self.total += amount
        self._held[tenant] += amount

    def release(self, tenant: str, amount: int) -> None:
        """Release capacity of a tenant."""
        self.total -= amount
        self._held[tenant] -= amount
        # Tenants without capacity in use leave no entry: names of clients are unbounded.
        if not self._held[tenant]:
            del self._held[tenant]
