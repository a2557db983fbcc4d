"""All batches that are not over: begun, resumed when the daemon starts, cancelled."""

from __future__ import annotations

import asyncio
import logging

from gatewayd.batches import records
from gatewayd.batches.run import BatchLimits, BatchRun, Shared
from gatewayd.files.vault import Vault
from gatewayd.http.asgi import App
from gatewayd.store.clock import Clock
from gatewayd.store.database import Database
from gatewayd.store.room import Room
from gatewayd.tenants.directory import Directory

_log = logging.getLogger(__name__)

_AGAIN_SECONDS = 30.0
"""After a mistake of ours, which may have passed."""


class Batches:
    """Runs batches in tasks of its own; between ``start`` and ``stop``.

    Args:
        database: with their rows.
        vault: with their files.
        limits: of all of them.
        room: for new ones.
        clock: for their times.
    """

    def __init__(
        self, database: Database, vault: Vault, limits: BatchLimits, room: Room, clock: Clock
    ) -> None:
        self.database = database
        self.vault = vault
        self.limits = limits
        self.room = room
        self.clock = clock
        self._shared: Shared | None = None
        self._runs: dict[str, BatchRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, app: App, directory: Directory) -> None:
        """Go on where the last process ended.

        Args:
            app: answers lines.
            directory: says with whose rights.
        """
        slots = asyncio.Semaphore(self.limits.concurrency)
        self._shared = Shared(
            app,
            directory,
            self.database,
            self.vault,
            self.limits,
            self.room,
            self.clock,
            slots,
            asyncio.Lock(),
        )
        for batch_id in await self.database.read(records.unfinished):
            _log.info("going on with the batch %s", batch_id)
            self.begin(batch_id)

    async def stop(self) -> None:
        """Leave everything as it is; lines that run are run again after the next start."""
        self._shared = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def begin(self, batch_id: str) -> None:
        """Work on a batch; a daemon that stops leaves it to the next one."""
        if self._shared is None:
            return
        run = self._runs[batch_id] = BatchRun(self._shared, batch_id)
        task = asyncio.create_task(self._run(batch_id, run), name=f"batch {batch_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self, batch_id: str) -> None:
        """A batch is ``cancelling`` now."""
        if (run := self._runs.get(batch_id)) is not None:
            run.cancel()

    async def _run(self, batch_id: str, run: BatchRun) -> None:
        try:
            while True:
                try:
                    return await run.run()
                except Exception:  # noqa: BLE001 - it must not be lost for a mistake of ours
                    _log.exception("the batch %s is held up", batch_id)
                    await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            del self._runs[batch_id]
