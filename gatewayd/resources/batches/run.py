"""Run of one batch, from its present status to its end.

Every step leaves the database in a state from which the next start resumes: a line's result is
written with the count of results, files of results with the end. A line that was running when the
process died has no result and runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection

from gatewayd.errors import StoreFull, Unauthorized
from gatewayd.fairness.fair_queue import FairQueue
from gatewayd.http.asgi import App
from gatewayd.resources.batches import records
from gatewayd.resources.batches.completion import BatchCompletion, write_files
from gatewayd.resources.batches.line import LineRetry, attempt, refused_line
from gatewayd.resources.batches.line_scheduler import LineSchedulers, Permit
from gatewayd.resources.batches.line_set import LineSet
from gatewayd.resources.batches.pending_lines import PendingLine, PendingLines
from gatewayd.resources.batches.records import BatchRow, LineResult
from gatewayd.resources.batches.validation import InputValidation, LineError, ValidationResult
from gatewayd.resources.files.content_store import ContentStore
from gatewayd.store.clock import StoreClock
from gatewayd.store.database import Database
from gatewayd.store.disk_quota import DiskQuota
from gatewayd.store.retry import until_done
from gatewayd.tenants.directory import Directory

T = TypeVar("T")

_PIECE_SECONDS = 0.02
"""Time slice of validating an input, after which the next tenant is scheduled."""

_TURNS_OF_A_LOOK = 32
"""Lines between two checks of the tenant's store quota."""

_LOOK_SECONDS = 60.0
"""Interval of clock checks, since the machine may be suspended."""


class BatchLimits(NamedTuple):
    """Limits of batches.

    Attributes:
        concurrency: parallel lines, of all batches together.
        open: unfinished batches of a tenant.
        lines: lines of a batch, including empty ones.
        line_bytes: bytes of a line.
        window: seconds within which a batch ends.
    """

    concurrency: int = 32
    open: int = 100
    lines: int = 50_000
    line_bytes: int = 8 << 20
    window: int = 86_400


class BatchContext(NamedTuple):
    """Context shared by all batches.

    Attributes:
        app: runs lines.
        directory: provides principals.
        database: database of their rows.
        vault: store of their files.
        limits: limits of batches.
        room: storage quota for results.
        clock: clock for their times.
        schedulers: schedulers of lines, by tenant.
        reading: queue for validating inputs, in pieces: in parallel they would take all threads.
        ending: queue for ends of batches, one at a time: each uses a database reader.
    """

    app: App
    directory: Directory
    database: Database
    vault: ContentStore
    limits: BatchLimits
    room: DiskQuota
    clock: StoreClock
    schedulers: LineSchedulers
    reading: FairQueue
    ending: FairQueue


class BatchRun:
    """Runs one batch.

    Args:
        shared: context shared with other batches.
        batch_id: id of the batch.
    """

    def __init__(self, shared: BatchContext, batch_id: str) -> None:
        self._shared = shared
        self._id = batch_id
        self._cancelled = asyncio.Event()

    def cancel(self) -> None:
        """Stop the running lines after the status has become ``cancelling``."""
        self._cancelled.set()

    async def run(self) -> None:
        """Run until the batch has ended."""
        row = await self._read(lambda connection: records.find(connection, self._id))
        # The status alone says what to do: a resumed batch and a new one take the same path.
        while row.status in records.NEXT:
            match row.status:
                case "validating":
                    row = await self._validate(row)
                case "in_progress":
                    row = await self._work(row)
                case _:
                    row = await self._end(row)
        await delete_results(self._shared.database, self._id)

    async def _validate(self, row: BatchRow) -> BatchRow:
        try:
            # One input per tenant at a time: the state of a validation takes memory.
            async with self._shared.schedulers.of(row.tenant).checking:
                checked = await self._check(row)
        # The input itself: faults of the store are `StoreUnavailable`, and are retried.
        except OSError:
            return await self._fail()
        if checked.errors:
            shown = [error.shown() for error in checked.errors]
            return await self._move("failed", errors=shown)
        return await self._move("in_progress", total=checked.total, model=checked.model)

    async def _check(self, row: BatchRow) -> ValidationResult:
        limits = self._shared.limits
        checking = InputValidation(
            self._input(row), row.endpoint, most_lines=limits.lines, line_bytes=limits.line_bytes
        )
        while True:
            # Ignored by `_move`, since the row is cancelling already.
            if self._cancelled.is_set():
                return ValidationResult(0, None, [])
            with await self._shared.reading.acquire(row.tenant):
                checked = await asyncio.to_thread(checking.step, _PIECE_SECONDS)
            if checked is not None:
                return checked

    async def _work(self, row: BatchRow) -> BatchRow:
        """Run lines until all have results, the batch is cancelled, or its window ends."""
        working = asyncio.create_task(self._run_lines(row))
        cancelled = asyncio.create_task(self._cancelled.wait())
        ended = asyncio.create_task(self._until_over(row))
        waiting = [working, cancelled, ended]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Before the cancellation, which would make it done in any case.
            is_whole = working.done()
            for task in waiting:
                task.cancel()
            # No line may still write a result once the end has read them.
            (fault,) = await asyncio.gather(working, return_exceptions=True)
        # The task group wraps what it raises; an OSError is a fault of the input.
        if is_whole and isinstance(fault, ExceptionGroup) and fault.subgroup(OSError):
            return await self._fail()
        if is_whole and fault is not None:
            raise fault
        return await self._move("finalizing")

    async def _until_over(self, row: BatchRow) -> None:
        """Wait for the end of its window; after a clock jump at most one whole window."""
        clock, window = self._shared.clock, self._shared.limits.window
        end = float(row.expires_at)
        while (left := min(end - clock.now(), window)) > 0:
            end = clock.now() + left
            await asyncio.sleep(min(left, _LOOK_SECONDS))

    async def _run_lines(self, row: BatchRow) -> None:
        scheduler = self._shared.schedulers.of(row.tenant)
        # From here on only this run adds results, so the set need not be updated.
        done = await until_done(lambda: self._lines_done(row))
        source = PendingLines(self._input(row), row.endpoint, total=row.total, done=done)
        try:
            async with asyncio.TaskGroup() as group:
                refusal, num_turns = None, 0
                while await source.has_more():
                    if num_turns % _TURNS_OF_A_LOOK == 0:
                        refusal = await self._refusal(row)
                    num_turns += 1
                    permit = await scheduler.acquire(self._id)
                    try:
                        todo = await source.next()
                    except BaseException:
                        permit.close()
                        raise
                    if todo is None:
                        permit.close()
                        continue
                    task = group.create_task(self._run_line(row, source, todo, permit, refusal))
                    # It may be cancelled before it has started.
                    task.add_done_callback(permit.close)
        finally:
            scheduler.discard_batch(self._id)

    async def _lines_done(self, row: BatchRow) -> LineSet:
        with await self._shared.reading.acquire(row.tenant):
            return await self._shared.database.read(
                lambda connection: records.lines_done(connection, self._id)
            )

    async def _refusal(self, row: BatchRow) -> StoreFull | None:
        """The refusal of the next lines if their tenant has used up its storage quota."""
        shared = self._shared
        with contextlib.suppress(Unauthorized):  # reported for each line
            owner = shared.directory.principal_of(row.tenant, row.key_id)
            try:
                await until_done(lambda: shared.room.check_line(owner))
            except StoreFull as refusal:
                return refusal
        return None

    async def _run_line(
        self,
        row: BatchRow,
        source: PendingLines,
        todo: PendingLine,
        permit: Permit,
        refusal: StoreFull | None,
    ) -> None:
        shared = self._shared
        result: LineResult | LineRetry
        if refusal is None:
            result = await attempt(
                shared.app,
                shared.directory,
                row,
                todo.line,
                losses=todo.losses,
                seconds=shared.schedulers.of(row.tenant).window.backoff_seconds,
            )
        else:
            result = refused_line(row.id, todo.line, refusal)
        if isinstance(result, LineRetry):
            permit.refused(result.seconds)
            source.refused(todo, result.seconds, is_lost=result.is_lost)
            return
        permit.answered()
        # Keep the slot: while the store cannot be written, results in memory stay bounded.
        await self._write(lambda connection: records.record(connection, result))
        permit.close()
        source.ended()

    async def _end(self, row: BatchRow) -> BatchRow:
        """Write the files of results, then record the final status."""
        # Not one retry around both: if only the row cannot be written, the files are kept.
        ending = await until_done(lambda: self._files_written(row))
        return await self._write(ending.record)

    async def _files_written(self, row: BatchRow) -> BatchCompletion:
        vault, now = self._shared.vault, self._shared.clock.stamp()
        with await self._shared.ending.acquire(row.tenant):
            return await self._shared.database.read(
                lambda connection: write_files(connection, row, vault, now)
            )

    async def _fail(self) -> BatchRow:
        """Fail the batch because its input cannot be read."""
        error = LineError("input_unreadable", None, "the input file cannot be read", None)
        return await self._move("failed", errors=[error.shown()])

    async def _move(self, status: str, **values: Any) -> BatchRow:  # noqa: ANN401 - columns
        now = self._shared.clock.stamp()

        def move(connection: Connection) -> BatchRow:
            # Read again, since a client may cancel at any time.
            row = records.find(connection, self._id)
            if status not in records.NEXT[row.status]:
                return row  # it was cancelled in the meantime
            return records.set_status(connection, self._id, status, now, **values)

        return await self._write(move)

    def _input(self, row: BatchRow) -> Path:
        return self._shared.vault.path(row.input_file_id)

    async def _read(self, work: Callable[[Connection], T]) -> T:
        return await until_done(lambda: self._shared.database.read(work))

    async def _write(self, work: Callable[[Connection], T]) -> T:
        return await until_done(lambda: self._shared.database.write(work))


async def delete_results(database: Database, batch_id: str) -> None:
    """Delete the results of a batch that has ended, a few in each transaction."""
    while await until_done(
        lambda: database.write(lambda connection: records.delete_some_results(connection, batch_id))
    ):
        pass
