"""Prepared statements of the request path: compiled once, executed by the driver directly.

An execution by SQLAlchemy takes longer than SQLite itself does, and delays all requests of the same
group commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import ClauseElement


def raw_of(connection: Connection) -> sqlite3.Connection:
    """The driver's connection, within the same transaction."""
    raw: Any = connection.connection.driver_connection
    found: sqlite3.Connection = raw
    return found


class PreparedStatement:
    """A compiled statement.

    Args:
        statement: a statement with named parameters; its constants stay. Values are given as
            SQLite stores them: column types do not convert them.
    """

    __slots__ = ("_constants", "_sql")

    def __init__(self, statement: ClauseElement) -> None:
        compiled = statement.compile(dialect=sqlite.dialect(paramstyle="named"))
        self._sql = str(compiled)
        # Parameters to be given are None here. Left out, a forgotten one is an error, not NULL.
        self._constants = {k: v for k, v in (compiled.params or {}).items() if v is not None}

    def run(self, connection: Connection, **given: object) -> sqlite3.Cursor:
        """Execute the statement.

        Raises:
            sqlite3.Error: it failed, or a parameter is missing.
        """
        return raw_of(connection).execute(self._sql, {**self._constants, **given})

    def run_for_all(self, connection: Connection, rows: Iterable[Mapping[str, object]]) -> None:
        """Execute the statement once for each row.

        Raises:
            sqlite3.Error: see ``run``.
        """
        raw_of(connection).executemany(self._sql, [{**self._constants, **row} for row in rows])
