"""Scheduler of batch lines: fair queueing between tenants, then among each tenant's batches.

A slot is held while a line runs and its result is stored, never while the line waits for a limit, a
pause or a full queue: meanwhile its tenant holds at most one slot, for the probing line.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from gatewayd.fairness.fair_queue import FairQueue, QueueSlot
from gatewayd.resources.batches.congestion_window import CongestionWindow


class Permit:
    """A slot for one line; must be closed, which is idempotent."""

    __slots__ = ("_era", "_is_open", "_scheduler", "_slot")

    def __init__(self, scheduler: TenantLineScheduler, slot: QueueSlot) -> None:
        self._scheduler = scheduler
        self._slot = slot
        self._era = scheduler.window.start_line()
        self._is_open = True

    def answered(self) -> None:
        """Report a response; the permit is held until the result is stored."""
        self._scheduler.window.answered(self._era)

    def refused(self, seconds: float) -> None:
        """Release the slot after a refusal; the tenant's lines pause for this many seconds."""
        # First: the window shrinks to the lines that still run, without this one.
        self.close()
        self._scheduler.window.refused(self._era, seconds)
        self._scheduler.wake()

    def close(self, _: object = None) -> None:
        """Release the slot."""
        if self._is_open:
            self._is_open = False
            self._scheduler.window.end_line()
            self._slot.release()
            self._scheduler.wake()


class TenantLineScheduler:
    """Schedules the batches of one tenant.

    Turns alternate between its oldest batch and the batch that has had the fewest turns: a small
    batch ends soon despite a large one, and among many large ones the oldest still progress.

    Attributes:
        window: limits the number of running lines.
        checking: held while an input of the tenant is validated.

    Args:
        tenant: its name.
        slots: fair queue shared by all tenants.
        clock: seconds; monotonic.
    """

    def __init__(self, tenant: str, slots: FairQueue, clock: Callable[[], float]) -> None:
        self.window = CongestionWindow(clock)
        self.checking = asyncio.Lock()
        self._tenant = tenant
        self._slots = slots
        self._waiting: dict[str, asyncio.Future[Permit]] = {}
        self._num_turns: dict[str, int] = {}
        self._is_oldests = False
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def acquire(self, batch_id: str) -> Permit:
        """Wait until the next line of a batch may run; at most one waiter per batch."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[batch_id] = future
        # No await between `_run` finding no waiter and its end, so that no waiter is missed here.
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"batches of {self._tenant}")
        self.wake()
        try:
            permit: Permit = await future
        except asyncio.CancelledError:
            # Either still waiting, or granted before the cancellation was delivered.
            self._waiting.pop(batch_id, None)
            if not future.cancelled():
                future.result().close()
            self.wake()
            raise
        return permit

    def discard_batch(self, batch_id: str) -> None:
        """Discard the state of a batch that has ended."""
        self._num_turns.pop(batch_id, None)

    def wake(self) -> None:
        """Wake the scheduler: a window, a slot or a waiter has changed."""
        self._changed.set()

    async def stop(self) -> None:
        """Stop scheduling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._waiting:
                # Before the window is read: a change after this line ends the wait below.
                self._changed.clear()
                if (delay := self.window.delay) != 0:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(delay):
                            await self._changed.wait()
                    continue
                slot = await self._slots.acquire(self._tenant)
                # Checked again: meanwhile waiters may have left, or a line may have been refused.
                future = self._next() if self._waiting and self.window.delay == 0 else None
                if future is None or future.cancelled():  # the waiter was cancelled
                    slot.release()
                else:
                    future.set_result(Permit(self, slot))
        finally:
            self._task = None

    def _next(self) -> asyncio.Future[Permit]:
        """Pick the waiter of the next batch; ids of batches sort by creation time."""
        # Alternates even if both rules pick the same batch.
        self._is_oldests = not self._is_oldests
        batch_id = min(
            self._waiting,
            key=lambda one: (0 if self._is_oldests else self._num_turns.get(one, 0), one),
        )
        self._num_turns[batch_id] = self._num_turns.get(batch_id, 0) + 1
        return self._waiting.pop(batch_id)


class LineSchedulers:
    """The schedulers of all tenants.

    Attributes:
        slots: shared by the tenants.

    Args:
        num_slots: lines that may run at once.
        clock: seconds; monotonic.
    """

    def __init__(
        self, num_slots: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        # Each tenant waits for one slot at a time.
        self.slots = FairQueue("batches", num_slots, most_waiting=None, clock=clock)
        self._clock = clock
        self._schedulers: dict[str, TenantLineScheduler] = {}

    def of(self, tenant: str) -> TenantLineScheduler:
        """The scheduler of a tenant."""
        if tenant not in self._schedulers:
            self._schedulers[tenant] = TenantLineScheduler(tenant, self.slots, self._clock)
        return self._schedulers[tenant]

    async def stop(self) -> None:
        """Stop all schedulers."""
        for scheduler in self._schedulers.values():
            await scheduler.stop()
