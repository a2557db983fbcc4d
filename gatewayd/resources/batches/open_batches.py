"""All batches that are not over: begun, resumed when the daemon starts, cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence

from gatewayd.fairness.fair_queue import FairQueue, QueueStats
from gatewayd.fairness.tenant_cap import TenantCap
from gatewayd.http.asgi import App
from gatewayd.resources.batches import records
from gatewayd.resources.batches.line_scheduler import Lanes
from gatewayd.resources.batches.run import BatchContext, BatchLimits, BatchRun, forget_results
from gatewayd.resources.files.content_store import Vault
from gatewayd.store.clock import StoreClock
from gatewayd.store.database import Database
from gatewayd.store.disk_quota import DiskQuota
from gatewayd.tenants.directory import Directory

_log = logging.getLogger(__name__)

_AGAIN_SECONDS = 30.0
"""After a mistake of ours, which may have passed."""
_RETRY_SECONDS = 30.0
"""A batch of a few lines has ended by then."""


class Batches:
    """Runs batches in tasks of its own; between ``start`` and ``stop``.

    Attributes:
        cap: of unfinished batches; ``begin`` needs a reservation there.

    Args:
        database: with their rows.
        vault: with their files.
        limits: of all of them.
        room: for new ones.
        clock: for their times.
    """

    def __init__(
        self,
        database: Database,
        vault: Vault,
        limits: BatchLimits,
        room: DiskQuota,
        clock: StoreClock,
    ) -> None:
        self.database = database
        self.vault = vault
        self.limits = limits
        self.room = room
        self.clock = clock
        self._shared: BatchContext | None = None
        self._runs: dict[str, BatchRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.cap = TenantCap(
            limits.open,
            "{held} batches are unfinished; the maximum is {most}, [batches] open: wait until one "
            "has ended, cancel one, or put more lines into each",
            reason="open_batches",
            retry_after=_RETRY_SECONDS,
        )

    async def start(self, app: App, directory: Directory) -> None:
        """Go on where the last process ended.

        Args:
            app: answers lines.
            directory: says with whose rights.
        """
        self._shared = BatchContext(
            app,
            directory,
            self.database,
            self.vault,
            self.limits,
            self.room,
            self.clock,
            Lanes(lambda: self.limits.concurrency),
            # Each tenant waits for as many as it may have open.
            FairQueue("inputs of batches", lambda: 1, most_waiting=None),
            FairQueue("ends of batches", lambda: 1, most_waiting=None),
        )
        for batch_id, tenant in await self.database.read(records.unfinished):
            _log.info("resuming batch %s", batch_id)
            self.cap.count(tenant)
            self.begin(tenant, batch_id)
        if left_behind := await self.database.read(records.left_behind):
            self._go_on(self._forget(left_behind), "results of batches")

    async def stop(self) -> None:
        """Leave everything as it is; lines that run are run again after the next start."""
        shared, self._shared = self._shared, None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if shared is not None:
            await shared.lanes.stop()

    @property
    def queues(self) -> dict[str, QueueStats]:
        """Counts of the queues of lines, inputs and ends; all zero before the start."""
        shared = self._shared
        if shared is None:
            return dict.fromkeys(("batches", "batch_inputs", "batch_ends"), QueueStats())
        return {
            "batches": shared.lanes.slots.standing,
            "batch_inputs": shared.reading.standing,
            "batch_ends": shared.ending.standing,
        }

    def begin(self, tenant: str, batch_id: str) -> None:
        """Run a batch that was reserved; if the daemon stops, the next one resumes it."""
        if self._shared is None:
            return
        run = self._runs[batch_id] = BatchRun(self._shared, batch_id)
        self._go_on(self._run(tenant, batch_id, run), f"batch {batch_id}")

    def cancel(self, batch_id: str) -> None:
        """A batch is ``cancelling`` now."""
        if (run := self._runs.get(batch_id)) is not None:
            run.cancel()

    def _go_on(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forget(self, batch_ids: Sequence[str]) -> None:
        """Delete results that the last process had no time to delete after a batch's end."""
        for batch_id in batch_ids:
            await forget_results(self.database, batch_id)

    async def _run(self, tenant: str, batch_id: str, run: BatchRun) -> None:
        try:
            while True:
                try:
                    return await run.run()
                except Exception:  # noqa: BLE001 - it must not be lost for a mistake of ours
                    _log.exception("batch %s failed; it is retried", batch_id)
                    await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            del self._runs[batch_id]
            self.cap.give_up(tenant)
