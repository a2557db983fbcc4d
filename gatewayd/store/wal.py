"""The log beside the database: kept short, whoever reads; and a bug of SQLite's in it.

SQLite copies the log into the database as it goes, but begins it anew only when nobody reads from
it: where readers overlap, it would grow for ever. So the writer waits for them now and then.
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
"""From here on the writer waits for readers; and the log's file after it was begun anew."""

_WAIT_MILLISECONDS = 100
"""For readers to end; nobody writes meanwhile. New ones read what is in the database by then."""

_AGAIN_SECONDS = 5.0

MENDED = (3, 51, 3)
"""The version; distributions may have mended older ones."""


def path_of(file: Path) -> Path:
    """The log of a database."""
    return file.with_name(f"{file.name}-wal")


def size_of(file: Path) -> int:
    """Bytes of the log of a database."""
    try:
        return path_of(file).stat().st_size
    except OSError:  # there is none before the first write
        return 0


class WriteAheadLog:
    """The log, for the only connection that writes.

    Args:
        file: of the database.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._next = 0.0
        self._is_told = False

    def shorten(self, connection: Connection) -> None:
        """Begin it anew if it is long; between two transactions of the connection."""
        if size_of(self._file) <= LIMIT_BYTES:
            self._is_told = False
            return
        if time.monotonic() < self._next:
            return
        try:
            is_whole = _begin_anew(connection)
        except (sqlite3.Error, SQLAlchemyError) as error:
            # The disk's fault: who writes next is told of it.
            _log.debug("cannot truncate the write-ahead log of %s: %s", self._file, error)
            is_whole = False
        self._next = time.monotonic() + _AGAIN_SECONDS
        if not (is_whole or self._is_told):
            self._is_told = True
            _log.warning(
                "write-ahead log %s has %d bytes and grows: a long-running reader of %s, "
                "such as a copy or a program with an open transaction, prevents its "
                "truncation",
                path_of(self._file),
                size_of(self._file),
                self._file,
            )


def _begin_anew(connection: Connection) -> bool:
    """Copy all into the database and empty the log; False if somebody still reads from it."""
    raw = cast(sqlite3.Connection, connection.connection.driver_connection)
    (patience,) = raw.execute("PRAGMA busy_timeout").fetchone()
    raw.execute(f"PRAGMA busy_timeout = {_WAIT_MILLISECONDS}")
    try:
        (is_busy, *_) = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        raw.execute(f"PRAGMA busy_timeout = {patience}")
    return not is_busy


def has_bug(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> bool:
    """Whether SQLite is older than the mended one."""
    return version < MENDED


def tell_of_bug(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> None:
    """Say at the start if SQLite has the bug; the daemon itself does nothing that meets it."""
    if has_bug(version):
        _log.info(
            "SQLite %s: let no other program write to the store; gatewayd doctor says why",
            ".".join(map(str, version)),
        )
