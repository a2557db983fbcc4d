"""Verification of the database's schema against the migrations.

A trigger acts within the daemon's own transactions, with its rights. So do views in place of
tables, expression indexes, foreign keys, defaults and table clauses. Tables are compared by their
parsed properties: their SQL text differs where a column was added later.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container
from typing import Any

from sqlalchemy import Connection

from gatewayd_migrations.shape import SHAPE

_NAME_CHARACTERS = 64
_OF_SQLITE = re.compile(r"sqlite_(stat[134]|sequence)")
"""Tables created by ANALYZE and the like; SQLite reserves such names."""
_CLAUSES = re.compile(
    r"\b(AS|CHECK|COLLATE|CONFLICT|DEFERRABLE|GENERATED|STRICT|VIRTUAL|WITHOUT)\b", re.IGNORECASE
)
"""Table clauses that no PRAGMA reports."""


def version_of(connection: Connection) -> int:
    """SQLite's schema version, which changes with each statement that changes the schema."""
    (found,) = _raw(connection).execute("PRAGMA schema_version").fetchone()
    return int(found)


def tables(connection: Connection) -> frozenset[str]:
    """Keys of all tables of a database."""
    query = "SELECT name FROM main.sqlite_master WHERE type = 'table'"
    return frozenset(f"table {name}" for (name,) in _raw(connection).execute(query))


def digests(connection: Connection, known: Container[str]) -> dict[str, str]:
    """Digests of all schema objects, by kind and name; a duplicate name has an empty digest.

    Args:
        connection: to the store.
        known: keys of tables to compare by columns and constraints instead of their text.
    """
    raw, found = _raw(connection), dict[str, str]()
    query = "SELECT type, name, tbl_name, sql FROM main.sqlite_master"
    for kind, name, table, sql in raw.execute(query).fetchall():
        if kind == "index" and sql is None and f"table {table}" in known:
            continue  # index of a constraint, which is part of its table's digest
        if kind == "table" and _OF_SQLITE.fullmatch(str(name)):
            continue
        key, text = f"{kind} {name}", _normal(str(sql))
        if kind == "table" and key in known:
            text = _of_table(raw, name, text)
        said = repr((kind, name, table, text))
        digest = hashlib.sha256(said.encode(errors="replace")).hexdigest()[:32]
        # Only an edited `sqlite_master` has duplicates; no digest is empty, so both fail.
        found[key] = "" if key in found else digest
    return found


def faults(connection: Connection) -> list[str]:
    """Differences to the migrations' schema, a sentence each."""
    found, told = digests(connection, SHAPE), []
    for key in sorted(found.keys() | SHAPE.keys()):
        name = key[:_NAME_CHARACTERS]
        if key not in SHAPE:
            told.append(f"the store has the {name}, which gatewayd did not make: drop it")
        elif key not in found:
            told.append(f"the store lacks the {name}")
        elif found[key] != SHAPE[key]:
            told.append(f"the {name} of the store is not as gatewayd made it")
    return told


def _of_table(raw: Any, name: str, text: str) -> str:  # noqa: ANN401 - sqlite3's connection
    """Describe columns, defaults, foreign keys with their actions, constraints and clauses."""

    def pragma(what: str, of: str) -> list[tuple[Any, ...]]:
        quoted = of.replace('"', '""')
        return [tuple(row) for row in raw.execute(f'PRAGMA main.{what}("{quoted}")')]

    # Origin `c` is CREATE INDEX, an object of its own. The first column depends on the order
    # of creation.
    constraints = [row[1:] for row in pragma("index_list", name) if row[3] != "c"]
    return repr(
        (
            # Of the text only what precedes the columns; the rest differs if one was added later.
            text.partition("(")[0].strip(),
            pragma("table_xinfo", name),
            pragma("foreign_key_list", name),
            [(row, pragma("index_xinfo", row[0])) for row in sorted(constraints)],
            sorted(found.upper() for found in _CLAUSES.findall(text)),
        )
    )


def _normal(sql: str) -> str:
    """Normalize quoting, which SQLite changes when it renames a table."""
    return " ".join(sql.replace('"', "").split())


def _raw(connection: Connection) -> Any:  # noqa: ANN401 - sqlite3's connection
    return connection.connection.driver_connection
