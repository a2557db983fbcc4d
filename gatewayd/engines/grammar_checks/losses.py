"""Rate limit on grammar checkers that a tenant's grammars kill."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from gatewayd.errors import TenantNotAdmitted

MOST, SECONDS = 10, 60.0
"""Checkers that a tenant's grammars may kill, and within how long."""


class CheckerLosses:
    """Counts killed checkers by tenant.

    Args:
        clock: seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.num_refused = 0
        """Requests refused, since the start."""
        self._lost: dict[str, deque[float]] = {}

    def record(self, tenant: str) -> None:
        """Count a killed checker."""
        now = self._clock()
        # Expired tenants are removed here, where the dict may grow.
        for name in [name for name, times in self._lost.items() if times[-1] <= now - SECONDS]:
            del self._lost[name]
        self._lost.setdefault(tenant, deque(maxlen=MOST)).append(now)

    def check(self, tenant: str) -> None:
        """Refuse a new grammar of a tenant over the limit.

        Raises:
            TenantNotAdmitted: its grammars killed too many checkers.
        """
        # The latest `MOST` times: the first one decides.
        times = self._lost.get(tenant)
        if times is None or len(times) < MOST:
            return
        left = times[0] + SECONDS - self._clock()
        if left > 0:
            self.num_refused += 1
            raise TenantNotAdmitted(
                f"{MOST} grammars of this tenant took more time or memory to compile than the "
                f"limit within {SECONDS:g} s; those that were compiled before are served; make "
                "others simpler, or try again later",
                reason="grammars",
                retry_after=left,
            )
