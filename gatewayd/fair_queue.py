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
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

from gatewayd.errors import NotAdmitted, TenantNotAdmitted

_ACTIVE_SECONDS = 60.0
"""After its last use a tenant counts as active, and a slot is kept free for it."""
_RETRY_SECONDS = 1.0
_MOST_IDLE = 1024
"""Tenants that are remembered without having anything here."""

_behalf: ContextVar[str] = ContextVar("gatewayd.behalf", default="")


def work_on_behalf_of(tenant: str) -> None:
    """Whatever this task, and those that it begins, want of what is shared is this tenant's."""
    _behalf.set(tenant)


def on_behalf_of() -> str:
    """The tenant that this task works for; empty for the daemon itself."""
    return _behalf.get()


class _Turn(NamedTuple):
    """A request that waits.

    Attributes:
        size: what it takes of the waiting room.
        granted: done once it has a slot.
    """

    size: float
    granted: asyncio.Future[None]


@dataclass(slots=True, eq=False)
class _Tenant:
    """One tenant's queue.

    Attributes:
        served: its virtual time, in seconds of service.
        running: slots that it holds.
        waiting: its requests, the oldest first.
        size: of these together.
        last_used: by the clock.
        restrained_until: up to then it leaves a slot free, by the clock.
        is_smallest_next: whether its next turn is the smallest one's, and not the oldest one's.
    """

    served: float
    last_used: float
    running: int = 0
    waiting: deque[_Turn] = field(default_factory=deque)
    size: float = 0.0
    restrained_until: float = 0.0
    is_smallest_next: bool = True

    def next(self) -> _Turn:
        """The one that is to run next, which waits no more."""
        at = 0
        # Where all are of the size 1 nobody looks.
        if self.is_smallest_next and self.size != len(self.waiting):
            at = min(range(len(self.waiting)), key=lambda i: self.waiting[i].size)
        self.is_smallest_next = not self.is_smallest_next
        turn = self.waiting[at]
        self.leave(turn)
        return turn

    def leave(self, turn: _Turn) -> None:
        """One waits no more."""
        self.waiting.remove(turn)
        self.size -= turn.size


class FairQueue:
    """Gives slots of a resource to tenants in turn.

    While several tenants are active none of them holds the last slot: there is one for the tenant
    that comes next. Within a tenant the oldest request and the smallest have every other turn.

    Args:
        what: the resource, for errors, such as "tokenizer".
        slots: how many there are, as the configuration of now says.
        most_waiting: the sizes of all tenants' waiting requests together; each is 1 unless it says
            otherwise.
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
        self._tenants: dict[str, _Tenant] = {}  # the one that was used last is last
        self._busy: dict[_Tenant, None] = {}  # that run or wait
        self._queued: dict[_Tenant, None] = {}  # that wait
        self._running = 0
        self._num_waiting = 0
        self._size_waiting = 0.0
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

    async def acquire(self, tenant: str, size: float = 1.0) -> None:
        """Wait for a slot; cancelling gives the turn up.

        Args:
            tenant: who wants it.
            size: what it takes of the waiting room meanwhile.

        Raises:
            TenantNotAdmitted: the tenant's share of the waiting room is full.
            NotAdmitted: all of it is.
        """
        account = self._account(tenant)
        if not account.waiting and self._may_run(account):
            self._start(account)
            return
        self._check_room(account, size)
        turn = _Turn(size, asyncio.get_running_loop().create_future())
        account.waiting.append(turn)
        account.size += size
        self._num_waiting += 1
        self._size_waiting += size
        self._busy[account] = self._queued[account] = None
        try:
            await turn.granted
        except asyncio.CancelledError:
            if not turn.granted.cancelled():
                self.release(tenant, 0.0)  # it was given a slot meanwhile
            elif turn in account.waiting:
                account.leave(turn)
                self._left(account, turn)
            raise

    def release(self, tenant: str, service: float) -> None:
        """Give a slot back.

        Args:
            tenant: who held it.
            service: that it got, in seconds or another unit that is the same for all.
        """
        account = self._tenants.pop(tenant)
        self._tenants[tenant] = account
        account.running -= 1
        account.served += service
        account.last_used = self._clock()
        self._running -= 1
        self._rest(account)
        self.wake()

    def wake(self) -> None:
        """Fill free slots; to be called when there are more of them."""
        while account := self._next():
            turn = account.next()
            self._left(account, turn)
            if not turn.granted.cancelled():  # else whoever waited has left, and is about to say so
                self._start(account)
                turn.granted.set_result(None)

    def restrain(self, tenant: str, seconds: float) -> None:
        """Let a tenant leave one slot free for so long, whether another is active or not."""
        self._account(tenant).restrained_until = self._clock() + seconds

    def _left(self, account: _Tenant, turn: _Turn) -> None:
        self._num_waiting -= 1
        self._size_waiting -= turn.size
        if not account.waiting:
            del self._queued[account]
            self._rest(account)

    def _account(self, tenant: str) -> _Tenant:
        now, account = self._clock(), self._tenants.pop(tenant, None)
        if account is None:
            if len(self._tenants) >= _MOST_IDLE:
                self._forget()
            account = _Tenant(self._virtual_time, now)
        elif account not in self._busy:
            account.served = max(account.served, self._virtual_time)
        account.last_used = now
        self._tenants[tenant] = account
        return account

    def _forget(self) -> None:
        """The one that was used longest ago, of those that have nothing here."""
        now = self._clock()
        for name, one in self._tenants.items():
            if one not in self._busy and one.restrained_until <= now:
                del self._tenants[name]
                return

    def _rest(self, account: _Tenant) -> None:
        if not (account.running or account.waiting):
            self._busy.pop(account, None)

    def _next(self) -> _Tenant | None:
        if self._running >= self._slots():
            return None
        candidates = [one for one in self._queued if self._may_run(one)]
        return min(candidates, key=lambda one: one.served, default=None)

    def _start(self, account: _Tenant) -> None:
        self._virtual_time = max(self._virtual_time, account.served)
        account.running += 1
        self._running += 1
        self._busy[account] = None

    def _may_run(self, account: _Tenant) -> bool:
        slots = self._slots()
        if self._running >= slots:
            return False
        if account.running < slots - 1 or slots == 1:
            return True
        if account.restrained_until > self._clock() or len(self._busy) > (account in self._busy):
            return False
        since = self._clock() - _ACTIVE_SECONDS
        latest = next((one for one in reversed(self._tenants.values()) if one is not account), None)
        return latest is None or latest.last_used <= since

    def _check_room(self, account: _Tenant, size: float) -> None:
        left = self._most_waiting - self._size_waiting
        if left <= 0:
            raise NotAdmitted(
                f"{self._num_waiting} requests wait for the {self._what}, which is the limit; try "
                "again later",
                reason="full",
                retry_after=_RETRY_SECONDS,
            )
        if account.waiting and account.size + size > left:
            raise TenantNotAdmitted(
                f"{len(account.waiting)} of this tenant's requests wait for the {self._what}, "
                f"which is its share of the {self._most_waiting} that may; try again later",
                reason="tenant_share",
                retry_after=_RETRY_SECONDS,
            )
