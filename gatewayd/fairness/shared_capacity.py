"""Capacity that tenants share by dynamic thresholds (Choudhury and Hahne, 1998).

A tenant may hold as much as is left, so a single one gets half and a new one always finds some.
"""

from __future__ import annotations

from collections import Counter


class SharedCapacity:
    """Counts what each tenant holds, in any unit.

    Attributes:
        most: that all tenants may hold together.
        total: that they hold.
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
        """What a tenant holds."""
        return self._held[tenant]

    def is_over_share(self, tenant: str, amount: int) -> bool:
        """Whether a tenant with so much more would hold more than is left now."""
        return self._held[tenant] + amount > self.left

    def take(self, tenant: str, amount: int) -> None:
        """Reserve it for a tenant, over its share or not."""
        self.total += amount
        self._held[tenant] += amount

    def give_back(self, tenant: str, amount: int) -> None:
        """Release what a tenant holds."""
        self.total -= amount
        self._held[tenant] -= amount
        if not self._held[tenant]:
            del self._held[tenant]
