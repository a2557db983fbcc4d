"""Registry of open batches: start, resumption after a restart, and cancellation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence

from gatewayd.fairness.fair_queue import FairQueue, QueueStats
from gatewayd.fairness.tenant_cap import TenantCap
from gatewayd.http.asgi import App
from gatewayd.resources.batches import records
from gatewayd.resources.batches.line_scheduler import LineSchedulers
from gatewayd.resources.batches.run import BatchContext, BatchLimits, BatchRun, delete_results
from gatewayd.resources.files.content_store import ContentStore
from gatewayd.store.clock import StoreClock
from gatewayd.store.database import Database
from gatewayd.store.disk_quota import DiskQuota
from gatewayd.tenants.directory import Directory

_log = logging.getLogger(__name__)

_AGAIN_SECONDS = 30.0
"""Delay before a retry after an internal error, which may be transient."""
_RETRY_SECONDS = 30.0
"""Retry hint: a batch of a few lines has ended by then."""


class Batches:
    """Runs open batches in background tasks, between ``start`` and ``stop``.

    Attributes:
        cap: limit on open batches; ``start_batch`` needs a reservation.

    Args:
        database: database of their rows.
        vault: store of their files.
        limits: limits of batches.
        room: storage quota for new ones.
        clock: clock for their times.
    """

    def __init__(
        self,
        database: Database,
        vault: ContentStore,
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
        """Resume the batches of the previous process.

        Args:
            app: runs lines.
            directory: provides principals.
        """
        self._shared = BatchContext(
            app,
            directory,
            self.database,
            self.vault,
            self.limits,
            self.room,
            self.clock,
            LineSchedulers(lambda: self.limits.concurrency),
            # Each tenant queues as many as it may have open.
            FairQueue("inputs of batches", lambda: 1, most_waiting=None),
            FairQueue("ends of batches", lambda: 1, most_waiting=None),
        )
        for batch_id, tenant in await self.database.read(records.unfinished):
            _log.info("resuming batch %s", batch_id)
            # Even beyond the cap, which may have been lowered: they were accepted.
            self.cap.count(tenant)
            self.start_batch(tenant, batch_id)
        if left_behind := await self.database.read(records.with_leftover_results):
            self._spawn(self._delete_leftovers(left_behind), "results of batches")

    async def stop(self) -> None:
        """Stop all batches; interrupted lines run again after the next start."""
        # First, so that a request that is still served starts no other run.
        shared, self._shared = self._shared, None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if shared is not None:
            await shared.schedulers.stop()

    @property
    def queues(self) -> dict[str, QueueStats]:
        """Statistics of the queues of lines, inputs and ends; all zero before the start."""
        shared = self._shared
        if shared is None:
            return dict.fromkeys(("batches", "batch_inputs", "batch_ends"), QueueStats())
        return {
            "batches": shared.schedulers.slots.stats,
            "batch_inputs": shared.reading.stats,
            "batch_ends": shared.ending.stats,
        }

    def start_batch(self, tenant: str, batch_id: str) -> None:
        """Run a batch that was reserved; after a stop, the next start resumes it."""
        # Its row is stored already.
        if self._shared is None:
            return
        run = self._runs[batch_id] = BatchRun(self._shared, batch_id)
        self._spawn(self._run(tenant, batch_id, run), f"batch {batch_id}")

    def cancel(self, batch_id: str) -> None:
        """Cancel the running lines of a batch whose status is ``cancelling``."""
        if (run := self._runs.get(batch_id)) is not None:
            run.cancel()

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _delete_leftovers(self, batch_ids: Sequence[str]) -> None:
        """Delete results that the previous process did not delete after a batch's end."""
        for batch_id in batch_ids:
            await delete_results(self.database, batch_id)

    async def _run(self, tenant: str, batch_id: str, run: BatchRun) -> None:
        try:
            while True:
                try:
                    return await run.run()
                except Exception:  # noqa: BLE001 - an internal error must not lose the batch
                    _log.exception("batch %s failed; it is retried", batch_id)
                    await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            del self._runs[batch_id]
            self.cap.release(tenant)
