"""Whose grammar is compiled next: tenants take turns, by the seconds of a thread that they had.

Start-time fair queueing, as the daemon does it for what it shares (``gatewayd/fair_queue.py``): who
comes back from idleness begins at the virtual time of now, and where several are active nobody has
all threads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import ref

if TYPE_CHECKING:
    from gatewayd_engine.guides.compiling import Compiled

_ACTIVE_SECONDS = 60.0
_MOST_IDLE = 1024


@dataclass(slots=True, eq=False)
class _Tenant:
    """One tenant.

    Attributes:
        served: its virtual time, seconds.
        last_used: by the clock.
        running: threads that it has.
        waiting: its grammars, the oldest first, as long as a request wants them.
    """

    served: float
    last_used: float
    running: int = 0
    waiting: deque[ref[Compiled]] = field(default_factory=deque)

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing here."""
        return not (self.running or self.waiting)


class Turns:
    """Grammars that wait, by tenant.

    Args:
        threads: that there are.
        clock: seconds; monotonic.
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads = threads
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}
        self._virtual_time = 0.0
        self._running = 0

    def add(self, one: Compiled) -> None:
        """One waits, until it is its tenant's turn or nobody wants it any more."""
        now, known = self._clock(), self._tenants.get(one.tenant)
        if known is None:
            if len(self._tenants) >= _MOST_IDLE:
                self._forget(now)
            known = self._tenants[one.tenant] = _Tenant(self._virtual_time, now)
        elif known.is_idle:
            known.served = max(known.served, self._virtual_time)
        known.last_used = now
        known.waiting.append(ref(one))

    def next(self) -> Compiled | None:
        """One that gets a thread now; None if there is none, or no thread for it."""
        while self._running < self._threads:
            able = [one for one in self._tenants.values() if one.waiting and self._may_run(one)]
            if not able:
                return None
            tenant = min(able, key=lambda one: one.served)
            found = tenant.waiting.popleft()()
            if found is not None:
                self._virtual_time = max(self._virtual_time, tenant.served)
                tenant.running += 1
                self._running += 1
                return found
        return None

    def over(self, one: Compiled, seconds: float) -> None:
        """A thread is free again, after so long."""
        tenant = self._tenants[one.tenant]
        tenant.running -= 1
        tenant.served += seconds
        tenant.last_used = self._clock()
        self._running -= 1

    def _may_run(self, tenant: _Tenant) -> bool:
        if tenant.running < self._threads - 1:
            return True
        since = self._clock() - _ACTIVE_SECONDS
        return not any(
            one is not tenant and (not one.is_idle or one.last_used > since)
            for one in self._tenants.values()
        )

    def _forget(self, now: float) -> None:
        for name, one in [*self._tenants.items()]:
            if one.is_idle and now - one.last_used >= _ACTIVE_SECONDS:
                del self._tenants[name]
