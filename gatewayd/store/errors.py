"""What goes wrong with the store, as sentences: for the operator at the start, then for clients."""

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
"""Of the memory that readers and the writer share, in a file beside the database."""


DATABASE_ERRORS = (DBAPIError, sqlite3.Error)
"""By SQLAlchemy, and by the driver where a statement is run without it."""


class StoreError(Exception):
    """The store cannot be used; one sentence for the operator."""


def reason_of(error: BaseException) -> str | None:
    """Why the store failed; None for what is no fault of the store's."""
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, sqlite3.Error):
        code = getattr(original, "sqlite_errorcode", None)
        if code in _MORE:
            return _MORE[code]
        if code is not None and code & 0xFF in _REASONS:
            return _REASONS[code & 0xFF]
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return None


def raise_for_client(error: DBAPIError | sqlite3.Error | OSError) -> NoReturn:
    """Raise what a request is answered with: 503 where the store is at fault, else the error."""
    reason = reason_of(error)
    if reason is None:
        raise error
    _log.error("store failed: %s (%s)", reason, error)
    raise StoreUnavailable(f"the store cannot be used: {reason}", retry_after=5) from error
