"""Queues at what tenants share: each has a FIFO of its own, and the slots go round by fair shares.

The waiting room is shared by dynamic thresholds (Choudhury and Hahne, 1998): a tenant may have as
many waiting as there is room left, so one alone gets half of it and a newcomer always finds some.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from gatewayd.errors import NotAdmitted, TenantNotAdmitted
from gatewayd_engine.fair_share import FairShare

_RETRY_SECONDS = 1.0

_behalf: ContextVar[str] = ContextVar("gatewayd.behalf", default="")


def set_current_tenant(tenant: str) -> None:
    """Whatever this task, and those that it begins, want of what is shared is this tenant's."""
    _behalf.set(tenant)


def on_behalf_of() -> str:
    """The tenant that this task works for; empty for the daemon itself."""
    return _behalf.get()


class Standing(NamedTuple):
    """How a queue stands.

    Attributes:
        running: slots that are held.
        waiting: requests without one.
        refused: requests that found no room to wait, since the start.
        is_bounded: whether any may be refused.
    """

    running: int = 0
    waiting: int = 0
    refused: int = 0
    is_bounded: bool = False


class HeldSlot:
    """A slot, from when it was granted: what it is held for is charged to its tenant."""

    __slots__ = ("_began", "_is_held", "_queue", "_tenant")

    def __init__(self, queue: FairQueue, tenant: str, began: float) -> None:
        self._queue = queue
        self._tenant = tenant
        self._began = began
        self._is_held = True

    def release(self, _: object = None) -> None:
        """Give it back; once more does nothing."""
        if self._is_held:
            self._is_held = False
            self._queue.end(self._tenant, self._began)

    def __enter__(self) -> Self:
        """Hold it for a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give it back, if the block has not."""
        self.release()


class _Turn(NamedTuple):
    """A request that waits.

    Attributes:
        size: what it takes of the waiting room.
        granted: its slot, once it has one.
    """

    size: float
    granted: asyncio.Future[HeldSlot]


@dataclass(slots=True, eq=False)
class _Line:
    """One tenant's requests that wait.

    Attributes:
        turns: the oldest first.
        size: of these together.
        is_smallest_next: whether the next turn is the smallest one's, and not the oldest one's.
    """

    turns: deque[_Turn] = field(default_factory=deque)
    size: float = 0.0
    is_smallest_next: bool = True

    def next(self) -> _Turn:
        """The one that is to run next."""
        at = 0
        # Where all are of the size 1 nobody looks.
        if self.is_smallest_next and self.size != len(self.turns):
            at = min(range(len(self.turns)), key=lambda i: self.turns[i].size)
        self.is_smallest_next = not self.is_smallest_next
        return self.turns[at]


class FairQueue:
    """Gives slots of a resource to tenants in turn; see ``FairShare``.

    Within a tenant the oldest request and the smallest have every other turn.

    Args:
        what: the resource, for errors, such as "tokenizer".
        slots: how many there are, as the configuration of now says; ``wake`` when there are more.
        most_waiting: the sizes of all tenants' waiting requests together, each 1 unless it says
            otherwise; None where what comes is bounded elsewhere.
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
        self._most_waiting = most_waiting
        self._clock = clock
        self._share = FairShare(slots, clock)
        self._lines: dict[str, _Line] = {}  # of tenants with any
        self._num_waiting = self._num_refused = 0
        self._size_waiting = 0.0

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return self._num_waiting

    @property
    def num_running(self) -> int:
        """Slots that are held."""
        return self._share.num_running

    @property
    def standing(self) -> Standing:
        """How it stands now."""
        is_bounded = self._most_waiting is not None
        return Standing(self.num_running, self._num_waiting, self._num_refused, is_bounded)

    async def acquire(self, tenant: str, size: float = 1.0) -> HeldSlot:
        """Wait for a slot; cancelling gives the turn up.

        Args:
            tenant: who wants it.
            size: what it takes of the waiting room meanwhile.

        Returns:
            The slot, for the caller to release, best by ``with``.

        Raises:
            TenantNotAdmitted: the tenant's share of the waiting room is full.
            NotAdmitted: all of it is.
        """
        share, line = self._share, self._lines.get(tenant)
        share.arrive(tenant)
        if line is None:
            if share.may_run(tenant):
                return self._start(tenant)
            line = _Line()
        self._check_room(line, size)
        turn = _Turn(size, asyncio.get_running_loop().create_future())
        self._lines[tenant] = line
        line.turns.append(turn)
        line.size += size
        self._num_waiting += 1
        self._size_waiting += size
        share.wait(tenant)
        try:
            return await turn.granted
        except asyncio.CancelledError:
            if not turn.granted.cancelled():
                turn.granted.result().release()  # it was given a slot meanwhile
            elif turn in line.turns:
                self._leave(tenant, turn)
            raise

    def end(self, tenant: str, began: float) -> None:
        """A slot is free that was held since then; ``HeldSlot`` says so."""
        self._share.end(tenant, self._clock() - began)
        self.wake()

    def wake(self) -> None:
        """Fill free slots; to be called when there are more of them."""
        while (tenant := self._share.next()) is not None:
            turn = self._lines[tenant].next()
            self._leave(tenant, turn)
            if not turn.granted.cancelled():  # else whoever waited has left, and is about to say so
                turn.granted.set_result(self._start(tenant))

    def restrain(self, tenant: str, seconds: float) -> None:
        """Let a tenant leave one slot free for so long, whether another is active or not."""
        self._share.restrain(tenant, seconds)

    def _start(self, tenant: str) -> HeldSlot:
        self._share.start(tenant)
        return HeldSlot(self, tenant, self._clock())

    def _leave(self, tenant: str, turn: _Turn) -> None:
        line = self._lines[tenant]
        line.turns.remove(turn)
        line.size -= turn.size
        self._num_waiting -= 1
        self._size_waiting -= turn.size
        self._share.leave(tenant)
        if not line.turns:
            del self._lines[tenant]

    def _check_room(self, line: _Line, size: float) -> None:
        if self._most_waiting is None:
            return
        left = self._most_waiting - self._size_waiting
        if left <= 0:
            self._num_refused += 1
            raise NotAdmitted(
                f"{self._num_waiting} requests wait for the {self._what}, which is the limit; try "
                "again later",
                reason="full",
                retry_after=_RETRY_SECONDS,
            )
        if line.turns and line.size + size > left:
            self._num_refused += 1
            raise TenantNotAdmitted(
                f"{len(line.turns)} of this tenant's requests wait for the {self._what}, "
                f"which is its share of the {self._most_waiting} that may; try again later",
                reason="tenant_share",
                retry_after=_RETRY_SECONDS,
            )
