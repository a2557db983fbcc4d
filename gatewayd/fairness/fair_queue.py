"""Queues for resources that tenants share: a FIFO per tenant, slots assigned by fair queueing.

Queue capacity is a ``SharedCapacity``; a tenant that has no request waiting may always queue one
while any is left.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from gatewayd.errors import NotAdmitted, TenantNotAdmitted
from gatewayd.fairness.shared_capacity import SharedCapacity
from gatewayd_engine.fairness.fair_share import FairShare

_RETRY_SECONDS = 1.0

# A context variable, since tasks and threads that a request starts inherit it.
_behalf: ContextVar[str] = ContextVar("gatewayd.behalf", default="")


def set_current_tenant(tenant: str) -> None:
    """Charge shared resources used by this task, and by tasks that it starts, to a tenant."""
    _behalf.set(tenant)


def current_tenant() -> str:
    """The tenant that this task works for; empty for the daemon itself."""
    return _behalf.get()


class QueueStats(NamedTuple):
    """Counts of a queue.

    Attributes:
        running: slots that are held.
        waiting: requests that wait for a slot.
        refused: requests refused because the queue was full, since the start.
        is_bounded: whether its capacity is limited.
    """

    running: int = 0
    waiting: int = 0
    refused: int = 0
    is_bounded: bool = False


class QueueSlot:
    """A slot of a queue, once granted; the time for which it is held is charged to its tenant."""

    __slots__ = ("_began", "_is_held", "_queue", "_tenant")

    def __init__(self, queue: FairQueue, tenant: str, began: float) -> None:
        self._queue = queue
        self._tenant = tenant
        self._began = began
        self._is_held = True

    def release(self, _: object = None) -> None:
        """Release the slot; idempotent."""
        if self._is_held:
            self._is_held = False
            self._queue.end(self._tenant, self._began)

    def __enter__(self) -> Self:
        """Hold the slot for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the slot, unless the block has."""
        self.release()


class _Waiter(NamedTuple):
    """A waiting request.

    Attributes:
        size: queue capacity that it takes.
        granted: its slot, once granted.
    """

    size: int
    granted: asyncio.Future[QueueSlot]


@dataclass(slots=True, eq=False)
class _TenantQueue:
    """Waiting requests of one tenant.

    Attributes:
        turns: waiting requests, oldest first.
        is_smallest_next: whether the smallest is served next instead of the oldest.
    """

    turns: deque[_Waiter] = field(default_factory=deque)
    is_smallest_next: bool = True

    def next(self, size: int) -> _Waiter:
        """The request to run next, of requests that have this size together."""
        at = 0
        # With all sizes 1 the oldest is the smallest: no search.
        if self.is_smallest_next and size != len(self.turns):
            at = min(range(len(self.turns)), key=lambda i: self.turns[i].size)
        self.is_smallest_next = not self.is_smallest_next
        return self.turns[at]


class FairQueue:
    """Assigns the slots of a resource by fair queueing between tenants; see ``FairShare``.

    Within a tenant the oldest and the smallest waiting request are served alternately.

    Args:
        what: the resource, for error messages, such as "tokenizer".
        slots: the current number of slots; call ``wake`` after an increase.
        most_waiting: the capacity, as the sum of the sizes of all waiting requests, each 1 by
            default; None where arrivals are bounded elsewhere.
        clock: seconds; monotonic.
    """

    def __init__(
        self,
        what: str,
        slots: Callable[[], int],
        *,
        most_waiting: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._is_bounded = most_waiting is not None
        self._capacity = SharedCapacity(sys.maxsize if most_waiting is None else most_waiting)
        self._clock = clock
        self._share = FairShare(slots, clock)
        self._lines: dict[str, _TenantQueue] = {}  # of tenants with any
        self._num_waiting = self._num_refused = 0

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a slot."""
        return self._num_waiting

    @property
    def num_running(self) -> int:
        """Slots that are held."""
        return self._share.num_running

    @property
    def stats(self) -> QueueStats:
        """The current counts."""
        return QueueStats(self.num_running, self._num_waiting, self._num_refused, self._is_bounded)

    async def acquire(self, tenant: str, size: int = 1) -> QueueSlot:
        """Wait for a slot; cancelling leaves the queue.

        Args:
            tenant: the tenant to charge.
            size: queue capacity that it uses while it waits.

        Returns:
            The slot, to be released by the caller, preferably with ``with``.

        Raises:
            TenantNotAdmitted: the tenant's share of the capacity is used up.
            NotAdmitted: the whole capacity is used up.
        """
        share, line = self._share, self._lines.get(tenant)
        share.arrive(tenant)
        # Only a tenant without waiting requests may start at once, or it would overtake its own.
        if line is None:
            if share.may_run(tenant):
                return self._start(tenant)
            line = _TenantQueue()
        self._check_room(tenant, line, size)
        # All bookkeeping happens before the first await: `wake` finds a complete waiter.
        turn = _Waiter(size, asyncio.get_running_loop().create_future())
        self._lines[tenant] = line
        line.turns.append(turn)
        self._num_waiting += 1
        self._capacity.reserve(tenant, size)
        share.wait(tenant)
        try:
            return await turn.granted
        except asyncio.CancelledError:
            # Cancelling a task cancels the future that it awaits, unless that already has a result.
            if not turn.granted.cancelled():
                turn.granted.result().release()  # a slot was granted in the meantime
            # Not `self._lines[tenant]`: `wake` may have dequeued this waiter and deleted its queue.
            elif turn in line.turns:
                self._dequeue(tenant, turn)
            raise

    def end(self, tenant: str, began: float) -> None:
        """Release a slot that was held since ``began``; called by ``QueueSlot``."""
        self._share.end(tenant, self._clock() - began)
        self.wake()

    def wake(self) -> None:
        """Grant free slots; to be called when their number has increased."""
        # Each round dequeues one waiter, so the loop ends even if all of them were cancelled.
        while (tenant := self._share.next()) is not None:
            turn = self._lines[tenant].next(self._capacity.held(tenant))
            self._dequeue(tenant, turn)
            if not turn.granted.cancelled():  # otherwise the waiter is about to clean up
                turn.granted.set_result(self._start(tenant))

    def throttle(self, tenant: str, seconds: float) -> None:
        """Keep a tenant off the last free slot for a time, even if no other is active."""
        self._share.restrain(tenant, seconds)

    def _start(self, tenant: str) -> QueueSlot:
        self._share.start(tenant)
        return QueueSlot(self, tenant, self._clock())

    def _dequeue(self, tenant: str, turn: _Waiter) -> None:
        line = self._lines[tenant]
        line.turns.remove(turn)
        self._num_waiting -= 1
        self._capacity.release(tenant, turn.size)
        self._share.leave(tenant)
        if not line.turns:
            del self._lines[tenant]

    def _check_room(self, tenant: str, line: _TenantQueue, size: int) -> None:
        # Any capacity left is enough, whatever the size: one request at most exceeds it.
        if self._capacity.left <= 0:
            self._num_refused += 1
            raise NotAdmitted(
                f"{self._num_waiting} requests wait for the {self._what}, which is the limit; try "
                "again later",
                reason="full",
                retry_after=_RETRY_SECONDS,
            )
        # A tenant's first waiting request passes whatever its size; see the module.
        if line.turns and self._capacity.is_over_share(tenant, size):
            self._num_refused += 1
            raise TenantNotAdmitted(
                f"{len(line.turns)} of this tenant's requests wait for the {self._what}, "
                f"which is its share of the {self._capacity.most} that may; try again later",
                reason="tenant_share",
                retry_after=_RETRY_SECONDS,
            )
