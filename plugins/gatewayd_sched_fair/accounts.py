"""The accounts of the tenants: a virtual token counter for each, lifted when it was idle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RECENT_SECONDS = 60.0


class Accounts:
    """What each tenant was served for its weight, by the tenant's number.

    Attributes:
        levels: cost of what was served, divided by the weight, shape ``[tenants]``.
        weights: of the newest request of each, shape ``[tenants]``.
    """

    def __init__(self) -> None:
        self.levels = np.zeros(0)
        self.weights = np.ones(0)
        self._time = 0.0

    def note(self, tenant: int, weight: float) -> None:
        """A tenant has a request, of this weight."""
        self.fit(tenant)
        self.weights[tenant] = weight

    def fit(self, tenant: int) -> None:
        """Have an account for a tenant."""
        if tenant >= len(self.levels):
            more = max(tenant + 1, 2 * len(self.levels)) - len(self.levels)
            self.levels = np.concatenate([self.levels, np.zeros(more)])
            self.weights = np.concatenate([self.weights, np.ones(more)])

    def charge(self, tenants: NDArray[np.int32], costs: NDArray[np.float64]) -> None:
        """Tenants were served, one of them perhaps several times; both of shape ``[n]``."""
        np.add.at(self.levels, tenants, costs / self.weights[tenants])

    def forgive(self, wanting: NDArray[np.int64], active: NDArray[np.int64], credit: float) -> None:
        """Tenants that got all they wanted keep so much credit, and no more.

        They are brought up to that much below the time, which is the lowest level of those that
        want more: nobody saves up while others have all to themselves.

        Args:
            wanting: tenants that wanted more than they got, shape ``[n]``.
            active: tenants that have requests, shape ``[m]``.
            credit: cost.
        """
        # Time does not go back, or whoever was lifted to it would be ahead of it.
        if len(wanting):
            self._time = max(self._time, float(self.levels[wanting].min()))
        elif len(active):
            self._time = max(self._time, float(self.levels[active].max()))
        lifted = np.maximum(self.levels, self._time - credit / self.weights)
        lifted[wanting] = self.levels[wanting]
        self.levels = lifted

    def has_credit(self, tenants: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which were served less than those that want more, shape ``[n]``."""
        has_credit: NDArray[np.bool_] = self.levels[tenants] < self._time
        return has_credit

    def is_ahead(self, tenants: NDArray[np.int32], of: int, lead: float) -> NDArray[np.bool_]:
        """Who was served that much more than one, at the smaller weight of both, shape ``[n]``."""
        gap = self.levels[tenants] - self.levels[of]
        weights = np.minimum(self.weights[tenants], self.weights[of])
        is_ahead: NDArray[np.bool_] = gap * weights > 0.999 * lead
        return is_ahead


class Crowd:
    """Whether more than one tenant was there of late."""

    def __init__(self) -> None:
        self._newest = -1
        self._other = -math.inf

    def came(self, tenant: int, now: float) -> None:
        """A tenant has a request."""
        if tenant != self._newest:
            if self._newest >= 0:
                self._other = now
            self._newest = tenant

    def is_there(self, now: float) -> bool:
        """Whether requests of different tenants came in the last minute."""
        return now - self._other < _RECENT_SECONDS
