"""The single writer: a thread with the only writing connection, which commits in groups.

A commit waits for the disk. Work that arrives meanwhile forms the next transaction, each piece in a
savepoint of its own, so that a failing piece does not affect others.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine

from gatewayd.store.errors import reason_of
from gatewayd.store.prepared import raw_of
from gatewayd.store.wal import WriteAheadLog

T = TypeVar("T")

_GROUP = 256
"""Maximum pieces per transaction."""


class _Piece(NamedTuple):
    work: Callable[[Connection], Any]
    future: Future[Any]


class StoreWriter:
    """Runs pieces of work in order of submission."""

    def __init__(self, engine: Engine) -> None:
        # Held for life: the pool has one connection for each reader, and this one.
        self._connection = engine.connect()
        self._log = WriteAheadLog(Path(engine.url.database or ""))
        self._pieces: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._is_closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="gatewayd-store-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Connection], T]) -> Future[T]:
        """Run work in a transaction; the future is set once it is on the disk.

        Raises:
            RuntimeError: the writer is closed.
        """
        future: Future[T] = Future()
        # Under the lock nothing is put behind the None that ends the thread.
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the store is closed")
            self._pieces.put(_Piece(work, future))
        return future

    def close(self) -> None:
        """Complete submitted work, then stop."""
        with self._lock:
            self._is_closed = True
        self._pieces.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_open = True
        while is_open:
            group: list[_Piece] = []
            # Block for the first piece only, then take what has arrived during the last commit.
            first = self._pieces.get()
            while first is not None:
                # False if the caller was cancelled meanwhile: nothing of it is written.
                if first.future.set_running_or_notify_cancel():
                    group.append(first)
                if len(group) == _GROUP or self._pieces.empty():
                    break
                first = self._pieces.get()
            is_open = first is not None
            if group:
                _write(self._connection, group)
                # After the futures are set: a checkpoint delays no caller of this group.
                self._log.truncate(self._connection)
        self._connection.close()


def _write(connection: Connection, group: list[_Piece]) -> None:
    done: list[tuple[Future[Any], Any]] = []
    left = list(group)
    try:
        with connection.begin():
            raw = raw_of(connection)
            while left:
                piece = left[0]
                raw.execute("SAVEPOINT piece")
                try:
                    result = piece.work(connection)
                except Exception as error:
                    # An error of the store may have ended the whole transaction.
                    if reason_of(error) is not None:
                        raise
                    # The savepoint stays on SQLite's stack; the next one of that name hides it.
                    raw.execute("ROLLBACK TO piece")
                    piece.future.set_exception(error)
                else:
                    raw.execute("RELEASE piece")
                    done.append((piece.future, result))
                left.pop(0)
    except BaseException as error:  # noqa: BLE001 - raised in all waiting callers
        for future in [*(future for future, _ in done), *(piece.future for piece in left)]:
            if not future.done():
                future.set_exception(error)
        return
    # Only after the commit: a result means that the piece is on the disk.
    for future, result in done:
        future.set_result(result)
