"""Start-time fair queueing: which tenant is next at slots that several share.

A tenant's virtual time is the service that it has had. The waiting tenant with the least is next;
one that comes back from idleness starts at the virtual time of now, so that nobody saves service up
(Goyal, Vin and Cheng, SIGCOMM 1996; service is charged when it ends, for nobody knows before it
what it takes). While several tenants are active none of them holds the last slot of several: it is
kept free for the tenant that comes next.

Only the accounts are here: what waits, and how it is told, is its user's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

ACTIVE_SECONDS = 60.0
"""After its last use a tenant counts as active, and a slot is kept free for it."""
MOST_IDLE = 1024
"""Tenants that are remembered without having anything here."""


@dataclass(slots=True, eq=False)
class _Tenant:
    """One tenant's account.

    Attributes:
        served: its virtual time, in units of service.
        last_used: by the clock.
        running: slots that it holds.
        waiting: of its requests.
        restrained_until: up to then it leaves a slot free, by the clock.
    """

    served: float
    last_used: float
    running: int = 0
    waiting: int = 0
    restrained_until: float = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether it has anything here."""
        return bool(self.running or self.waiting)


class FairShare:
    """Counts who runs, who waits and what each had; its calls come from one thread.

    A request is ``arrive``, then either ``start`` where it ``may_run``, or ``wait`` and ``leave``,
    with a ``start`` once its tenant is ``next``; what runs has an ``end``.

    Args:
        slots: how many there are, as the configuration of now says.
        clock: seconds; monotonic.
    """

    def __init__(self, slots: Callable[[], int], clock: Callable[[], float]) -> None:
        self._slots = slots
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}  # the one that was used last is last
        self._queued: dict[str, _Tenant] = {}  # that wait
        self._num_busy = 0
        self._virtual_time = 0.0
        self.num_running = 0
        """Slots that are held."""

    def arrive(self, tenant: str) -> None:
        """A tenant has a request."""
        now, account = self._clock(), self._tenants.pop(tenant, None)
        if account is None:
            self._forget(now)
            account = _Tenant(self._virtual_time, now)
        elif not account.is_busy:
            account.served = max(account.served, self._virtual_time)
        account.last_used = now
        self._tenants[tenant] = account

    def may_run(self, tenant: str) -> bool:
        """Whether a tenant that has arrived may have a slot now."""
        return self._may_run(self._tenants[tenant])

    def start(self, tenant: str) -> None:
        """One of a tenant's requests has a slot."""
        account = self._tenants[tenant]
        self._virtual_time = max(self._virtual_time, account.served)
        self._num_busy += not account.is_busy
        account.running += 1
        self.num_running += 1

    def end(self, tenant: str, service: float) -> None:
        """A slot is free again.

        Args:
            tenant: who held it.
            service: that it got, in seconds or another unit that is the same for all.
        """
        account = self._tenants[tenant] = self._tenants.pop(tenant)
        account.running -= 1
        account.served += service
        account.last_used = self._clock()
        self.num_running -= 1
        self._num_busy -= not account.is_busy

    def wait(self, tenant: str) -> None:
        """One more request of a tenant that has arrived waits."""
        account = self._queued[tenant] = self._tenants[tenant]
        self._num_busy += not account.is_busy
        account.waiting += 1

    def leave(self, tenant: str) -> None:
        """One waits no more, for whatever reason."""
        account = self._queued[tenant]
        account.waiting -= 1
        self._num_busy -= not account.is_busy
        if not account.waiting:
            del self._queued[tenant]

    def next(self) -> str | None:
        """The waiting tenant that is to have a slot now; None if there is none, or no slot."""
        if self.num_running >= self._slots():
            return None
        able = [name for name, account in self._queued.items() if self._may_run(account)]
        return min(able, key=lambda name: self._queued[name].served, default=None)

    def restrain(self, tenant: str, seconds: float) -> None:
        """Let a tenant leave one slot free for so long, whether another is active or not."""
        self.arrive(tenant)
        self._tenants[tenant].restrained_until = self._clock() + seconds

    def _may_run(self, account: _Tenant) -> bool:
        slots = self._slots()
        if self.num_running >= slots:
            return False
        if account.running < slots - 1 or slots == 1:
            return True
        if account.restrained_until > self._clock():
            return False
        others_busy = self._num_busy - 1 if account.is_busy else self._num_busy
        if others_busy:
            return False
        since = self._clock() - ACTIVE_SECONDS
        latest = next((one for one in reversed(self._tenants.values()) if one is not account), None)
        return latest is None or latest.last_used <= since

    def _forget(self, now: float) -> None:
        """Those that were used longest ago and have nothing here, where there are too many."""
        too_many = len(self._tenants) - self._num_busy - MOST_IDLE + 1
        if too_many <= 0:
            return
        idle = (
            name
            for name, one in self._tenants.items()
            if not one.is_busy and one.restrained_until <= now
        )
        for name in [*islice(idle, too_many)]:
            del self._tenants[name]
