"""The database: how it is opened, read in threads and written by one.

Nothing here runs on the event loop: ``read`` and ``write`` give what can be awaited.
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
"""That a program of the operator's, such as a backup, may hold the lock."""


def connect(file: Path) -> Engine:
    """An engine whose transactions begin when they are told to; nothing is opened yet."""
    engine = create_engine(
        URL.create("sqlite+pysqlite", database=str(file)),
        poolclass=QueuePool,
        pool_size=_READERS + 1,
        max_overflow=0,
        connect_args={"check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: object) -> None:  # noqa: ANN401 - sqlite3's
        # sqlite3 would begin and commit by its own rules, and never around DDL.
        connection.isolation_level = None
        for pragma in (
            f"busy_timeout = {_BUSY_MILLISECONDS}",
            "journal_mode = WAL",
            # In WAL a commit is on the disk only with this; groups pay for it once.
            "synchronous = FULL",
            f"journal_size_limit = {wal.LIMIT_BYTES}",
            "foreign_keys = ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        readonly = connection.get_execution_options().get("readonly")
        # A transaction that first reads and then writes may find that another has written.
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
            return await loop.run_in_executor(self._readers, self._read, work)
        except DATABASE_ERRORS as error:
            raise_for_client(error)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Write in one transaction; it is on the disk when this returns.

        If whoever waits is cancelled it may be written or not.

        Raises:
            StoreUnavailable: the store cannot be written, or is closed.
        """
        if self._is_closed:
            raise _closed()
        try:
            return await asyncio.wrap_future(self._writer.submit(work))
        except DATABASE_ERRORS as error:
            raise_for_client(error)

    async def move(self) -> None:
        """Have the writer do nothing, after all that waits: it is alive when this returns.

        Raises:
            StoreUnavailable: see ``write``; it is alive then, too.
        """
        await self.write(lambda _: None)

    def submit(self, work: Callable[[Connection], object]) -> None:
        """Write without waiting for it; ``close`` waits."""
        self._writer.submit(work)

    def close(self) -> None:
        """Write what is left and close all connections."""
        self._is_closed = True
        self._writer.close()
        self._readers.shutdown()
        self._engine.dispose()

    def _read(self, work: Callable[[Connection], T]) -> T:
        with self._reading.begin() as connection:
            return work(connection)


def _closed() -> StoreUnavailable:
    return StoreUnavailable("the store is closed, as the daemon stops", retry_after=5)
