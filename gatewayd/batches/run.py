"""One batch, from the state it is found in to its end.

Every step leaves the database such that the next start goes on from there: a line's result is
written with the count of results, files of results with the end. A line that was running when the
process died has no result and is run again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection

from gatewayd.batches import records
from gatewayd.batches.endings import write_files
from gatewayd.batches.line import answer_line, refused_line
from gatewayd.batches.lines import Line, LineError, check, lines
from gatewayd.batches.records import BatchRow
from gatewayd.errors import StoreFull, Unauthorized
from gatewayd.files.vault import Vault
from gatewayd.http.asgi import App
from gatewayd.store.again import until_done
from gatewayd.store.clock import Clock
from gatewayd.store.database import Database
from gatewayd.store.room import Room
from gatewayd.tenants.directory import Directory

T = TypeVar("T")

_LINES_AT_ONCE = 32
_BYTES_AT_ONCE = 1 << 20
"""Lines that are read ahead; one that is longer comes alone."""

_LOOK_SECONDS = 60.0
"""Between two looks at the clock: a machine may sleep meanwhile."""


class BatchLimits(NamedTuple):
    """What batches may take.

    Attributes:
        concurrency: lines that run at once, of all batches together.
        lines: of a batch.
        line_bytes: of a line.
        window: seconds in which a batch ends.
    """

    concurrency: int = 32
    lines: int = 50_000
    line_bytes: int = 8 << 20
    window: int = 86_400


class Shared(NamedTuple):
    """What all batches share.

    Attributes:
        app: answers lines.
        directory: says with whose rights.
        database: with their rows.
        vault: with their files.
        limits: of batches.
        room: for results.
        clock: for their times.
        slots: one for each line that may run now.
        checking: held while an input is looked through: many at once would take all threads.
    """

    app: App
    directory: Directory
    database: Database
    vault: Vault
    limits: BatchLimits
    room: Room
    clock: Clock
    slots: asyncio.Semaphore
    checking: asyncio.Lock


class BatchRun:
    """Works on one batch.

    Args:
        shared: with all others.
        batch_id: of the batch.
    """

    def __init__(self, shared: Shared, batch_id: str) -> None:
        self._shared = shared
        self._id = batch_id
        self._cancelled = asyncio.Event()

    def cancel(self) -> None:
        """The batch is ``cancelling`` now: what runs of it ends."""
        self._cancelled.set()

    async def run(self) -> None:
        """Go on until it is over."""
        row = await self._read(lambda connection: records.find(connection, self._id))
        while row.status in records.NEXT:
            match row.status:
                case "validating":
                    row = await self._validate(row)
                case "in_progress":
                    row = await self._work(row)
                case _:
                    row = await self._end(row)

    async def _validate(self, row: BatchRow) -> BatchRow:
        limits = self._shared.limits
        try:
            async with self._shared.checking:
                checked = await asyncio.to_thread(
                    check,
                    self._input(row),
                    row.endpoint,
                    most_lines=limits.lines,
                    line_bytes=limits.line_bytes,
                )
        except OSError:
            return await self._fail()
        if checked.errors:
            shown = [error.shown() for error in checked.errors]
            return await self._move("failed", errors=shown)
        return await self._move("in_progress", total=checked.total, model=checked.model)

    async def _work(self, row: BatchRow) -> BatchRow:
        """Run lines until all have results, the batch is cancelled, or its time is over."""
        working = asyncio.create_task(self._run_lines(row))
        cancelled = asyncio.create_task(self._cancelled.wait())
        ended = asyncio.create_task(self._until_over(row))
        waiting = [working, cancelled, ended]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_whole = working.done()
            for task in waiting:
                task.cancel()
            (fault,) = await asyncio.gather(working, return_exceptions=True)
        if is_whole and isinstance(fault, ExceptionGroup) and fault.subgroup(OSError):
            return await self._fail()
        if is_whole and fault is not None:
            raise fault
        return await self._move("finalizing")

    async def _until_over(self, row: BatchRow) -> None:
        """Until its time is over; at most a window after a jump, whatever clock wrote its end."""
        clock, window = self._shared.clock, self._shared.limits.window
        end = float(row.expires_at)
        while (left := min(end - clock.now(), window)) > 0:
            end = clock.now() + left
            await asyncio.sleep(min(left, _LOOK_SECONDS))

    async def _run_lines(self, row: BatchRow) -> None:
        shared = self._shared
        done = await self._read(lambda connection: records.lines_done(connection, self._id))
        left = lines(self._input(row), row.endpoint, done)
        async with asyncio.TaskGroup() as group:
            while some := await asyncio.to_thread(_take, left):
                refusal = await self._refusal(row)
                for line in some:
                    await shared.slots.acquire()
                    group.create_task(self._run_line(row, line, refusal)).add_done_callback(
                        lambda _: shared.slots.release()
                    )

    async def _refusal(self, row: BatchRow) -> StoreFull | None:
        """Why the next lines are not run, if their tenant keeps all that it may in the store."""
        shared = self._shared
        with contextlib.suppress(Unauthorized):  # each line is told so
            owner = shared.directory.principal_of(row.tenant, row.key_id)
            try:
                await until_done(lambda: shared.room.check_line(owner))
            except StoreFull as refusal:
                return refusal
        return None

    async def _run_line(self, row: BatchRow, line: Line, refusal: StoreFull | None) -> None:
        if refusal is None:
            result = await answer_line(self._shared.app, self._shared.directory, row, line)
        else:
            result = refused_line(row.id, line, refusal)
        await self._write(lambda connection: records.record(connection, result))

    async def _end(self, row: BatchRow) -> BatchRow:
        """Write the files of results, then say so."""
        vault, now = self._shared.vault, self._shared.clock.stamp()

        ending = await self._read(lambda connection: write_files(connection, row, vault, now))
        return await self._write(ending.enter)

    async def _fail(self) -> BatchRow:
        """The input cannot be read."""
        error = LineError("input_unreadable", None, "the input file cannot be read", None)
        return await self._move("failed", errors=[error.shown()])

    async def _move(self, status: str, **values: Any) -> BatchRow:  # noqa: ANN401 - columns
        now = self._shared.clock.stamp()

        def move(connection: Connection) -> BatchRow:
            row = records.find(connection, self._id)
            if status not in records.NEXT[row.status]:
                return row  # it was cancelled meanwhile
            return records.move(connection, self._id, status, now, **values)

        return await self._write(move)

    def _input(self, row: BatchRow) -> Path:
        return self._shared.vault.path(row.input_file_id)

    async def _read(self, work: Callable[[Connection], T]) -> T:
        return await until_done(lambda: self._shared.database.read(work))

    async def _write(self, work: Callable[[Connection], T]) -> T:
        return await until_done(lambda: self._shared.database.write(work))


def _take(left: Iterator[Line]) -> list[Line]:
    """The next few."""
    some: list[Line] = []
    num_bytes = 0
    for line in islice(left, _LINES_AT_ONCE):
        some.append(line)
        num_bytes += len(line.body)
        if num_bytes > _BYTES_AT_ONCE:
            break
    return some
