"""Write-ahead log of the database: truncation despite readers, and a check for a SQLite bug.

SQLite checkpoints the log as it grows, but restarts it only when there are no readers: if readers
overlap, it would grow forever. Therefore the writer waits for them periodically.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from pathlib import Path
from typing import cast

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

_log = logging.getLogger(__name__)

LIMIT_BYTES = 64 << 20
"""Size from which the writer waits for readers, and maximum size of a truncated log file."""

_WAIT_MILLISECONDS = 100
"""Time to wait for readers, which delays writes. New readers use the database file."""

_AGAIN_SECONDS = 5.0

MENDED = (3, 51, 3)
"""First version without the bug; distributions may have patched older ones."""


def path_of(file: Path) -> Path:
    """Path of a database's log."""
    return file.with_name(f"{file.name}-wal")


def size_of(file: Path) -> int:
    """Bytes of a database's log."""
    try:
        return path_of(file).stat().st_size
    except OSError:  # there is none before the first write
        return 0


class WriteAheadLog:
    """The log, as seen by the only writing connection.

    Args:
        file: file of the database.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._next = 0.0
        self._has_warned = False

    def truncate(self, connection: Connection) -> None:
        """Truncate a long log; between two transactions of the connection."""
        if size_of(self._file) <= LIMIT_BYTES:
            self._has_warned = False
            return
        # While a reader prevents it, each attempt delays writes by up to `_WAIT_MILLISECONDS`.
        if time.monotonic() < self._next:
            return
        try:
            is_whole = _truncate(connection)
        except (sqlite3.Error, SQLAlchemyError) as error:
            # The disk's fault, which the next write reports.
            _log.debug("cannot truncate the write-ahead log of %s: %s", self._file, error)
            is_whole = False
        self._next = time.monotonic() + _AGAIN_SECONDS
        if not (is_whole or self._has_warned):
            self._has_warned = True
            _log.warning(
                "write-ahead log %s has %d bytes and grows: a long-running reader of %s, "
                "such as a copy or a program with an open transaction, prevents its "
                "truncation",
                path_of(self._file),
                size_of(self._file),
                self._file,
            )


def _truncate(connection: Connection) -> bool:
    """Checkpoint and truncate the log; return False if a reader prevents it."""
    raw = cast(sqlite3.Connection, connection.connection.driver_connection)
    # TRUNCATE waits for readers as long as the busy timeout says, and all writes with it.
    (patience,) = raw.execute("PRAGMA busy_timeout").fetchone()
    raw.execute(f"PRAGMA busy_timeout = {_WAIT_MILLISECONDS}")
    try:
        (is_busy, *_) = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        raw.execute(f"PRAGMA busy_timeout = {patience}")
    return not is_busy


def has_bug(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> bool:
    """Whether SQLite is older than the fixed version."""
    return version < MENDED


def log_bug(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> None:
    """Log at start if SQLite has the bug, which the daemon itself does not trigger."""
    if has_bug(version):
        _log.info(
            "SQLite %s: let no other program write to the store; gatewayd doctor says why",
            ".".join(map(str, version)),
        )
