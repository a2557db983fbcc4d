"""Errors of the store, described for the operator at start and for clients."""

from __future__ import annotations

import logging
import sqlite3
from typing import NoReturn

from sqlalchemy.exc import DBAPIError

from gatewayd.errors import StoreUnavailable

_log = logging.getLogger(__name__)

_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_IOERR: "the disk cannot be read or written",
    sqlite3.SQLITE_CORRUPT: "its file is damaged",
    sqlite3.SQLITE_NOTADB: "its file is no SQLite database, or is damaged",
    sqlite3.SQLITE_CANTOPEN: "its file cannot be opened",
    sqlite3.SQLITE_BUSY: "another program holds its lock",
    sqlite3.SQLITE_LOCKED: "another program holds its lock",
    sqlite3.SQLITE_PERM: "its file may not be opened",
}


_MORE = {
    sqlite3.SQLITE_IOERR_SHMSIZE: "the disk is full",
    sqlite3.SQLITE_IOERR_SHMMAP: "the disk is full, or cannot be written",
}
"""Errors of the shared memory of readers and writer, a file beside the database."""


DATABASE_ERRORS = (DBAPIError, sqlite3.Error)
"""Raised by SQLAlchemy, or by the driver for statements that bypass it."""


class StoreError(Exception):
    """The store cannot be used; one sentence for the operator."""


def reason_of(error: BaseException) -> str | None:
    """Describe why the store failed; None if the store is not the cause."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, sqlite3.Error):
        # Errors that the driver raises itself, such as for a missing parameter, have no code.
        code = getattr(original, "sqlite_errorcode", None)
        if code in _MORE:
            return _MORE[code]
        # The low byte of an extended code is the primary one.
        if code is not None and code & 0xFF in _REASONS:
            return _REASONS[code & 0xFF]
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return None


def raise_for_client(error: DBAPIError | sqlite3.Error | OSError) -> NoReturn:
    """Raise the error for a request: 503 if the store is the cause, otherwise the original."""
    reason = reason_of(error)
    if reason is None:
        raise error
    _log.error("store failed: %s (%s)", reason, error)
    raise StoreUnavailable(f"the store cannot be used: {reason}", retry_after=5) from error
