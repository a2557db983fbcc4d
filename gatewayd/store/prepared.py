"""Statements that run for every request: compiled once, then executed by the driver itself.

SQLAlchemy takes longer for an execution than SQLite does, and everybody whose request is in the
same group commit waits for it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import ClauseElement


def raw_of(connection: Connection) -> sqlite3.Connection:
    """The driver's connection, in the same transaction."""
    raw: Any = connection.connection.driver_connection
    found: sqlite3.Connection = raw
    return found


class PreparedStatement:
    """One statement.

    Args:
        statement: whose values are parameters by name; constants in it stay as they are. Values
            are given as SQLite stores them: no column types are looked at.
    """

    __slots__ = ("_constants", "_sql")

    def __init__(self, statement: ClauseElement) -> None:
        compiled = statement.compile(dialect=sqlite.dialect(paramstyle="named"))
        self._sql = str(compiled)
        self._constants = {k: v for k, v in (compiled.params or {}).items() if v is not None}

    def run(self, connection: Connection, **given: object) -> sqlite3.Cursor:
        """Execute it.

        Raises:
            sqlite3.Error: it failed, or a parameter is missing.
        """
        return raw_of(connection).execute(self._sql, {**self._constants, **given})

    def run_for_all(self, connection: Connection, rows: Iterable[Mapping[str, object]]) -> None:
        """Execute it once for each row.

        Raises:
            sqlite3.Error: see ``run``.
        """
        raw_of(connection).executemany(self._sql, [{**self._constants, **row} for row in rows])
