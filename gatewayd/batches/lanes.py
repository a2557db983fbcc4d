"""Which line runs next: tenants have slots in turn, and a tenant's batches have its turns.

A slot is held while a line is answered and its result written down, never while it waits for a
limit, a pause or a full queue: then nothing of its tenant has one but a line that tries.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from gatewayd.batches.pace import Pace
from gatewayd.fair_queue import FairQueue, HeldSlot


class Permit:
    """A slot for one line; to be closed, once more does nothing."""

    __slots__ = ("_era", "_is_open", "_lane", "_slot")

    def __init__(self, lane: Lane, slot: HeldSlot) -> None:
        self._lane = lane
        self._slot = slot
        self._era = lane.pace.begin()
        self._is_open = True

    def answered(self) -> None:
        """Its line has its answer; the permit goes on until that is written down."""
        self._lane.pace.answered(self._era)

    def refused(self, seconds: float) -> None:
        """Its line is to be sent again, nothing of the tenant before so many seconds."""
        self.close()
        self._lane.pace.refused(self._era, seconds)
        self._lane.look()

    def close(self, _: object = None) -> None:
        """Give the slot back."""
        if self._is_open:
            self._is_open = False
            self._lane.pace.end()
            self._slot.release()
            self._lane.look()


class Lane:
    """A tenant's.

    Every other turn is that of its oldest batch, the ones between that of the batch that has had
    the fewest: a small one is soon done beside one of many lines, and of many large ones some are
    done in their time.

    Attributes:
        pace: how many lines run.
        checking: held while an input of the tenant's is looked through.

    Args:
        tenant: its name.
        slots: of all tenants.
        clock: seconds; monotonic.
    """

    def __init__(self, tenant: str, slots: FairQueue, clock: Callable[[], float]) -> None:
        self.pace = Pace(clock)
        self.checking = asyncio.Lock()
        self._tenant = tenant
        self._slots = slots
        self._waiting: dict[str, asyncio.Future[Permit]] = {}
        self._num_turns: dict[str, int] = {}
        self._is_oldests = False
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def turn(self, batch_id: str) -> Permit:
        """Wait until the next line of a batch may run; one waits for each batch."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[batch_id] = future
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"batches of {self._tenant}")
        self.look()
        try:
            permit: Permit = await future
        except asyncio.CancelledError:
            self._waiting.pop(batch_id, None)
            if not future.cancelled():
                future.result().close()
            self.look()
            raise
        return permit

    def forget(self, batch_id: str) -> None:
        """A batch is over."""
        self._num_turns.pop(batch_id, None)

    def look(self) -> None:
        """Something has changed: more may run, or less."""
        self._changed.set()

    async def stop(self) -> None:
        """Nobody waits any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._waiting:
                self._changed.clear()
                if (delay := self.pace.delay) != 0:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(delay):
                            await self._changed.wait()
                    continue
                slot = await self._slots.acquire(self._tenant)
                future = self._next() if self._waiting and self.pace.delay == 0 else None
                if future is None or future.cancelled():  # whoever waited is about to leave
                    slot.release()
                else:
                    future.set_result(Permit(self, slot))
        finally:
            self._task = None

    def _next(self) -> asyncio.Future[Permit]:
        """Whose turn it is; ids of batches begin with their time."""
        self._is_oldests = not self._is_oldests
        batch_id = min(
            self._waiting,
            key=lambda one: (0 if self._is_oldests else self._num_turns.get(one, 0), one),
        )
        self._num_turns[batch_id] = self._num_turns.get(batch_id, 0) + 1
        return self._waiting.pop(batch_id)


class Lanes:
    """Of all tenants.

    Attributes:
        slots: that they share.

    Args:
        num_slots: lines that run at once.
        clock: seconds; monotonic.
    """

    def __init__(
        self, num_slots: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        # Each tenant waits for one slot at a time.
        self.slots = FairQueue("batches", num_slots, most_waiting=None, clock=clock)
        self._clock = clock
        self._lanes: dict[str, Lane] = {}

    def of(self, tenant: str) -> Lane:
        """A tenant's."""
        if tenant not in self._lanes:
            self._lanes[tenant] = Lane(tenant, self.slots, self._clock)
        return self._lanes[tenant]

    async def stop(self) -> None:
        """End what waits for slots."""
        for lane in self._lanes.values():
            await lane.stop()
