"""Start-time fair queueing: the tenants that want a shared resource get equal time of it.

Each tenant has a FIFO of its own, and a virtual time: the service that it has had. The waiting
tenant with the least virtual time is next; one that comes back from idleness starts at the virtual
time of now, so that nobody saves service up (Goyal, Vin and Cheng, SIGCOMM 1996; service is charged
when it ends, for nobody knows before it what it takes). The waiting room is shared by dynamic
thresholds (Choudhury and Hahne, 1998): a tenant may have as many waiting as there is room left, so
one alone gets half of it and a newcomer always finds some.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gatewayd.errors import NotAdmitted, TenantNotAdmitted

_ACTIVE_SECONDS = 60.0
"""After its last use a tenant counts as active, and a slot is kept free for it."""
_RETRY_SECONDS = 1.0
_MOST_IDLE = 1024
"""Tenants that are remembered without having anything here."""


@dataclass(slots=True, eq=False)
class _Tenant:
    """One tenant's queue.

    Attributes:
        served: its virtual time, in seconds of service.
        running: slots that it holds.
        waiting: its requests, the oldest first.
        last_used: by the clock.
    """

    served: float
    last_used: float
    running: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class FairQueue:
    """Gives slots of a resource to tenants in turn.

    While several tenants are active none of them holds the last slot: there is one for the tenant
    that comes next.

    Args:
        what: the resource, for errors, such as "tokenizer".
        slots: how many there are, as the configuration of now says.
        most_waiting: requests of all tenants.
        clock: seconds; monotonic.
    """

    def __init__(
        self,
        what: str,
        slots: Callable[[], int],
        *,
        most_waiting: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._slots = slots
        self._most_waiting = most_waiting
        self._clock = clock
        self._tenants: dict[str, _Tenant] = {}
        self._running = 0
        self._num_waiting = 0
        self._virtual_time = 0.0

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return self._num_waiting

    @property
    def num_running(self) -> int:
        """Slots that are held."""
        return self._running

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Hold a slot; the time that it is held is charged.

        Raises:
            TenantNotAdmitted: the tenant's share of the waiting room is full.
            NotAdmitted: all of it is.
        """
        await self.acquire(tenant)
        began = self._clock()
        try:
            yield
        finally:
            self.release(tenant, self._clock() - began)

    async def acquire(self, tenant: str) -> None:
        """Wait for a slot; cancelling gives the turn up.

        Raises:
            TenantNotAdmitted: the tenant's share of the waiting room is full.
            NotAdmitted: all of it is.
        """
        account = self._account(tenant)
        if not account.waiting and self._may_run(account):
            self._start(account)
            return
        self._check_room(account)
        turn = asyncio.get_running_loop().create_future()
        account.waiting.append(turn)
        self._num_waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.release(tenant, 0.0)  # it was given a slot meanwhile
            elif turn in account.waiting:
                account.waiting.remove(turn)
                self._num_waiting -= 1
            raise

    def release(self, tenant: str, service: float) -> None:
        """Give a slot back.

        Args:
            tenant: who held it.
            service: that it got, in seconds or another unit that is the same for all.
        """
        account = self._tenants[tenant]
        account.running -= 1
        account.served += service
        account.last_used = self._clock()
        self._running -= 1
        self.wake()

    def wake(self) -> None:
        """Fill free slots; to be called when there are more of them."""
        while account := self._next():
            turn = account.waiting.popleft()
            self._num_waiting -= 1
            if not turn.cancelled():  # else whoever waited has left, and is about to say so
                self._start(account)
                turn.set_result(None)

    def _account(self, tenant: str) -> _Tenant:
        now, account = self._clock(), self._tenants.get(tenant)
        if account is None:
            if len(self._tenants) >= _MOST_IDLE:
                self._forget(now)
            account = self._tenants[tenant] = _Tenant(self._virtual_time, now)
        elif not (account.running or account.waiting):
            account.served = max(account.served, self._virtual_time)
        account.last_used = now
        return account

    def _forget(self, now: float) -> None:
        idle = [
            name
            for name, one in self._tenants.items()
            if not (one.running or one.waiting or now - one.last_used < _ACTIVE_SECONDS)
        ]
        for name in idle:
            del self._tenants[name]

    def _next(self) -> _Tenant | None:
        candidates = [one for one in self._tenants.values() if one.waiting and self._may_run(one)]
        return min(candidates, key=lambda one: one.served, default=None)

    def _start(self, account: _Tenant) -> None:
        self._virtual_time = max(self._virtual_time, account.served)
        account.running += 1
        self._running += 1

    def _may_run(self, account: _Tenant) -> bool:
        slots = self._slots()
        if self._running >= slots:
            return False
        if account.running < slots - 1 or slots == 1:
            return True
        since = self._clock() - _ACTIVE_SECONDS
        return not any(
            one is not account and (one.running or one.waiting or one.last_used > since)
            for one in self._tenants.values()
        )

    def _check_room(self, account: _Tenant) -> None:
        left = self._most_waiting - self._num_waiting
        if left <= 0:
            raise NotAdmitted(
                f"{self._num_waiting} requests wait for the {self._what}, which is the limit; try "
                "again later",
                reason="full",
                retry_after=_RETRY_SECONDS,
            )
        if len(account.waiting) >= left:
            raise TenantNotAdmitted(
                f"{len(account.waiting)} of this tenant's requests wait for the {self._what}, "
                f"which is its share of the {self._most_waiting} that may; try again later",
                reason="tenant_share",
                retry_after=_RETRY_SECONDS,
            )
