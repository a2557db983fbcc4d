"""Start-time fair queueing: which tenant gets the next free slot of a shared resource.

A tenant's virtual time is the service that it has received. The waiting tenant with the least is
next; one that returns from idleness starts at the current virtual time, so that no tenant saves up
credit (Goyal, Vin and Cheng, SIGCOMM 1996; service is charged when it ends, because its cost is not
known in advance). With several slots, one is reserved for a tenant that arrives: no tenant takes
the last one while another is active.

This module only keeps the accounts; its caller keeps the queue and wakes the waiters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

ACTIVE_SECONDS = 60.0
"""For this long after its last use a tenant counts as active, and a slot is reserved for it."""
MOST_IDLE = 1024
"""Idle tenants whose accounts are kept."""


@dataclass(slots=True, eq=False)
class _Tenant:
    """One tenant's account.

    Attributes:
        served: its virtual time, in units of service.
        last_used: time of its last use, by the clock.
        running: slots that it holds.
        waiting: its requests that wait.
        restrained_until: time until which it may not take the last free slot, by the clock.
    """

    served: float
    last_used: float
    running: int = 0
    waiting: int = 0
    restrained_until: float = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether it holds a slot or waits for one."""
        return bool(self.running or self.waiting)


class FairShare:
    """Accounts of running and waiting requests and of received service; not thread-safe.

    For each request call ``arrive``, then ``start`` if it ``may_run``; otherwise ``wait``, and once
    its tenant is ``next``, ``leave`` and ``start``. What was started has an ``end``.

    Args:
        slots: the current number of slots.
        clock: seconds; monotonic.
    """

    def __init__(self, slots: Callable[[], int], clock: Callable[[], float]) -> None:
        self._slots = slots
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}  # least recently used first
        self._queued: dict[str, _Tenant] = {}  # with waiting requests
        self._num_busy = 0
        self._virtual_time = 0.0
        self.num_running = 0
        """Slots that are held."""

    def arrive(self, tenant: str) -> None:
        """Register the arrival of a tenant's request."""
        # Inserted again below, as the most recently used.
        now, account = self._clock(), self._tenants.pop(tenant, None)
        if account is None:
            self._evict_idle(now)
            account = _Tenant(self._virtual_time, now)
        elif not account.is_busy:
            account.served = max(account.served, self._virtual_time)
        account.last_used = now
        self._tenants[tenant] = account

    def may_run(self, tenant: str) -> bool:
        """Whether a request that has arrived may take a slot now."""
        return self._may_run(self._tenants[tenant])

    def start(self, tenant: str) -> None:
        """Assign a slot to a request of a tenant."""
        account = self._tenants[tenant]
        # The start tag of the latest request that got a slot; it never decreases.
        self._virtual_time = max(self._virtual_time, account.served)
        # Before the change of `running`: counts a tenant that has been idle.
        self._num_busy += not account.is_busy
        account.running += 1
        self.num_running += 1

    def end(self, tenant: str, service: float) -> None:
        """Release a slot.

        Args:
            tenant: tenant that held it.
            service: service to charge, in seconds or any unit common to all tenants.
        """
        account = self._tenants[tenant] = self._tenants.pop(tenant)
        account.running -= 1
        account.served += service
        account.last_used = self._clock()
        self.num_running -= 1
        self._num_busy -= not account.is_busy

    def wait(self, tenant: str) -> None:
        """Register that a request starts to wait."""
        account = self._queued[tenant] = self._tenants[tenant]
        self._num_busy += not account.is_busy
        account.waiting += 1

    def leave(self, tenant: str) -> None:
        """Register that a request stops waiting, for whatever reason."""
        account = self._queued[tenant]
        account.waiting -= 1
        # After the change of `waiting`: a tenant that holds slots is still busy.
        self._num_busy -= not account.is_busy
        if not account.waiting:
            del self._queued[tenant]

    def next(self) -> str | None:
        """Return the waiting tenant that gets a slot now; None if there is none, or no slot."""
        if self.num_running >= self._slots():
            return None
        able = [name for name, account in self._queued.items() if self._may_run(account)]
        return min(able, key=lambda name: self._queued[name].served, default=None)

    def restrain(self, tenant: str, seconds: float) -> None:
        """Bar a tenant from the last free slot for so long, even if no other is active."""
        self.arrive(tenant)
        self._tenants[tenant].restrained_until = self._clock() + seconds

    def _may_run(self, account: _Tenant) -> bool:
        slots = self._slots()
        if self.num_running >= slots:
            return False
        # It leaves a slot for another tenant; a single slot cannot be reserved.
        if account.running < slots - 1 or slots == 1:
            return True
        if account.restrained_until > self._clock():
            return False
        others_busy = self._num_busy - 1 if account.is_busy else self._num_busy
        if others_busy:
            return False
        since = self._clock() - ACTIVE_SECONDS
        # The dict is in order of use: this is the other tenant with the latest use.
        latest = next((one for one in reversed(self._tenants.values()) if one is not account), None)
        return latest is None or latest.last_used <= since

    def _evict_idle(self, now: float) -> None:
        """Evict the least recently used idle accounts beyond ``MOST_IDLE``."""
        # One more account is about to be inserted.
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
