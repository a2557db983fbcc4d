"""Virtual token counters of tenants, lifted after idle times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RECENT_SECONDS = 60.0


class VirtualTokenCounters:
    """Service received by each tenant divided by its weight, by the tenant's number.

    Attributes:
        levels: cost of received service, divided by the weight, shape ``[tenants]``.
        weights: of the latest request of each, shape ``[tenants]``.
    """

    def __init__(self) -> None:
        self.levels = np.zeros(0)
        self.weights = np.ones(0)
        self._time = 0.0

    def set_weight(self, tenant: int, weight: float) -> None:
        """Set a tenant's weight, that of its latest request."""
        self.fit(tenant)
        self.weights[tenant] = weight

    def fit(self, tenant: int) -> None:
        """Grow the arrays to include a tenant."""
        if tenant >= len(self.levels):
            more = max(tenant + 1, 2 * len(self.levels)) - len(self.levels)
            self.levels = np.concatenate([self.levels, np.zeros(more)])
            self.weights = np.concatenate([self.weights, np.ones(more)])

    def charge(self, tenants: NDArray[np.int32], costs: NDArray[np.float64]) -> None:
        """Add the cost of service to tenants, which may be repeated; both of shape ``[n]``."""
        # Unlike `+=` with an index, it adds every entry of a repeated tenant.
        np.add.at(self.levels, tenants, costs / self.weights[tenants])

    def limit_credit(
        self, wanting: NDArray[np.int64], active: NDArray[np.int64], credit: float
    ) -> None:
        """Limit the credit of tenants that got all they wanted.

        They are lifted to at most that much below the virtual time, which is the lowest level of
        the tenants that want more: tenants do not accumulate credit while they are idle or served
        fully.

        Args:
            wanting: tenants that wanted more than they got, shape ``[n]``.
            active: tenants that have requests, shape ``[m]``.
            credit: cost.
        """
        # Virtual time is monotonic, or tenants that were lifted to it would be ahead of it.
        if len(wanting):
            self._time = max(self._time, float(self.levels[wanting].min()))
        elif len(active):
            self._time = max(self._time, float(self.levels[active].max()))
        lifted = np.maximum(self.levels, self._time - credit / self.weights)
        lifted[wanting] = self.levels[wanting]
        self.levels = lifted

    def has_credit(self, tenants: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which tenants were served less than those that want more, shape ``[n]``."""
        has_credit: NDArray[np.bool_] = self.levels[tenants] < self._time
        return has_credit

    def is_ahead(self, tenants: NDArray[np.int32], of: int, lead: float) -> NDArray[np.bool_]:
        """Return which tenants are that much ahead of one, shape ``[n]``.

        Costs are compared at the smaller weight of both.
        """
        gap = self.levels[tenants] - self.levels[of]
        weights = np.minimum(self.weights[tenants], self.weights[of])
        is_ahead: NDArray[np.bool_] = gap * weights > 0.999 * lead
        return is_ahead


class ActiveTenants:
    """Tracks whether more than one tenant was active recently."""

    def __init__(self) -> None:
        self._newest = -1
        self._other = -math.inf

    def record_request(self, tenant: int, now: float) -> None:
        """Record a tenant's request."""
        if tenant != self._newest:
            if self._newest >= 0:
                self._other = now
            self._newest = tenant

    def has_several(self, now: float) -> bool:
        """Whether requests of different tenants arrived in the last minute."""
        return now - self._other < _RECENT_SECONDS
