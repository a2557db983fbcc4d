"""Database access: connections, reads in threads, and writes by a single writer.

Nothing blocks the event loop: ``read`` and ``write`` are awaitable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from gatewayd.errors import StoreUnavailable
from gatewayd.store import wal
from gatewayd.store.errors import DATABASE_ERRORS, raise_for_client
from gatewayd.store.writer import StoreWriter

T = TypeVar("T")

_READERS = 4
_BUSY_MILLISECONDS = 5000
"""Time for which another program, such as a backup, may hold the lock."""


def connect(file: Path) -> Engine:
    """Create an engine with explicitly started transactions; opens no connection yet."""
    engine = create_engine(
        URL.create("sqlite+pysqlite", database=str(file)),
        poolclass=QueuePool,
        pool_size=_READERS + 1,
        max_overflow=0,
        # Connections are pooled, and pass from thread to thread, one at a time.
        connect_args={"check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: object) -> None:  # noqa: ANN401 - sqlite3's
        # By default sqlite3 begins and commits by its own rules, and never around DDL.
        connection.isolation_level = None
        for pragma in (
            # First, since the next statement may already meet a lock.
            f"busy_timeout = {_BUSY_MILLISECONDS}",
            "journal_mode = WAL",
            # In WAL mode only this makes commits durable; group commits share the cost.
            "synchronous = FULL",
            f"journal_size_limit = {wal.LIMIT_BYTES}",
            "foreign_keys = ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        readonly = connection.get_execution_options().get("readonly")
        # A transaction that reads before it writes might fail because another one has written.
        connection.exec_driver_sql("BEGIN" if readonly else "BEGIN IMMEDIATE")

    return engine


class Database:
    """An open database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = engine.execution_options(readonly=True)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="gatewayd-store-reader")
        self._writer = StoreWriter(engine)
        self._is_closed = False

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Read in one transaction, in a thread.

        Raises:
            StoreUnavailable: the store cannot be read, or is closed.
        """
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise _closed()
        try:
            # As many threads as the pool has connections for readers: none of them waits for one.
            return await loop.run_in_executor(self._readers, self._read, work)
        except DATABASE_ERRORS as error:
            raise_for_client(error)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Write in one transaction; it is on the disk when this returns.

        If the caller is cancelled, the outcome is unknown.

        Raises:
            StoreUnavailable: the store cannot be written, or is closed.
        """
        if self._is_closed:
            raise _closed()
        try:
            # Cancelling the caller cancels a piece that the writer has not begun.
            return await asyncio.wrap_future(self._writer.submit(work))
        except DATABASE_ERRORS as error:
            raise_for_client(error)

    async def wait_idle(self) -> None:
        """Wait until the writer has processed all pending work, which shows that it is alive.

        Raises:
            StoreUnavailable: see ``write``; the writer is alive then, too.
        """
        await self.write(lambda _: None)

    def submit(self, work: Callable[[Connection], object]) -> None:
        """Write without waiting for the result; ``close`` waits."""
        self._writer.submit(work)

    def close(self) -> None:
        """Write pending work and close all connections."""
        self._is_closed = True
        self._writer.close()
        self._readers.shutdown()
        self._engine.dispose()

    def _read(self, work: Callable[[Connection], T]) -> T:
        with self._reading.begin() as connection:
            return work(connection)


def _closed() -> StoreUnavailable:
    return StoreUnavailable("the store is closed, as the daemon stops", retry_after=5)
