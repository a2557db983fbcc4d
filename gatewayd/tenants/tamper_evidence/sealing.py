"""Seals rows in the transaction that changes them, whichever code changes them.

Temporary triggers, on connections of this process only, record the content of a row before its
first change in a transaction; before the commit each such row is sealed again. A row whose previous
content failed verification is not, or a legitimate change would launder an illegitimate one. While
the schema contains foreign objects that act within transactions, such as triggers, nothing is
sealed.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from typing import Any

from sqlalchemy import Connection, Engine, event

from gatewayd.store import schema_check
from gatewayd.store.prepared import raw_of
from gatewayd.store.tables import audit as audit_table
from gatewayd.tenants.tamper_evidence import audit, seals
from gatewayd.tenants.tamper_evidence.secret import ServerSecret

_log = logging.getLogger(__name__)

_CHANGED = (
    "CREATE TEMP TABLE changed (kind TEXT, id, old TEXT, PRIMARY KEY (kind, id)) WITHOUT ROWID"
)
_AUDIT = audit_table.name


def _triggers() -> list[str]:
    # Temporary triggers are not in `sqlite_master`, which `schema_check` reads.
    made = [
        f"CREATE TEMP TRIGGER of_{_AUDIT} AFTER INSERT ON main.{_AUDIT} BEGIN "
        f"INSERT OR IGNORE INTO changed VALUES ('{_AUDIT}', NEW.seq, NULL); END"
    ]
    for kind, table in seals.TABLES.items():
        key, old = seals.id_of(table), seals.content_of(table, "OLD.")
        for what, row, content in (
            ("INSERT", "NEW", "NULL"),
            ("UPDATE", "OLD", old),
            ("DELETE", "OLD", old),
        ):
            # Only the first change of a row needs its content, which costs more than this lookup.
            known = f"SELECT 1 FROM changed WHERE kind = '{kind}' AND id = {row}.\"{key}\""
            made.append(
                f"CREATE TEMP TRIGGER of_{kind}_{what} AFTER {what} ON main.{kind} "
                f"WHEN NOT EXISTS ({known}) BEGIN "
                f"INSERT OR IGNORE INTO changed VALUES ('{kind}', {row}.\"{key}\", {content}); END"
            )
    return made


_TRIGGERS = _triggers()


def seal_changes(engine: Engine, secret: ServerSecret) -> None:
    """Seal all changes by connections of an engine from now on; the tables must exist."""
    seen = _SealingState()

    def record_changes(connection: sqlite3.Connection, _: object) -> None:
        # In memory: a disk may be full.
        connection.execute("PRAGMA temp_store = MEMORY")
        for statement in (_CHANGED, *_TRIGGERS):
            connection.execute(statement)

    def seal(connection: Connection) -> None:
        if not connection.get_execution_options().get("readonly"):
            _seal(connection, secret, seen)

    engine.dispose()  # connections without triggers
    event.listen(engine, "connect", record_changes)
    # Called before COMMIT: seals are part of the transaction.
    event.listen(engine, "commit", seal)


class _SealingState:
    """State kept between commits, to avoid repeated verification and log lines.

    Attributes:
        version: schema version of the last successful verification.
        told: rows that were logged as not sealed.
    """

    def __init__(self) -> None:
        self.version: int | None = None
        self.told: set[tuple[str, str]] = set()

    def is_ours(self, connection: Connection) -> bool:
        """Whether the schema is the migrations'; verified again when its version has changed.

        VACUUM and the like change the version and nothing that matters.
        """
        version = schema_check.version_of(connection)
        if version == self.version:
            return True
        found = schema_check.faults(connection)
        if found:
            _log.error("writes to the store are not sealed: %s", "; ".join(found[:3]))
            return False
        self.version = version
        return True


def _seal(connection: Connection, secret: ServerSecret, seen: _SealingState) -> None:
    raw = raw_of(connection)
    changed: list[tuple[str, Any, str | None]] = raw.execute(
        "SELECT kind, id, old FROM temp.changed"
    ).fetchall()
    if not changed:
        return
    # In any case: rows that are not sealed now must not be sealed by the next transaction.
    raw.execute("DELETE FROM temp.changed")
    if not seen.is_ours(connection):
        return
    state = seals.state_of(connection, secret)
    if state is None:  # reported at the start and by periodic verification
        return
    appended = [seq for kind, seq, _ in changed if kind == _AUDIT]
    for kind, row_id, old in changed:
        if kind == _AUDIT:
            continue
        # One state for all rows of the transaction, each with the next number.
        after = seals.reseal(connection, secret, state, kind, row_id, old)
        if after is not None:
            state = after
        elif (kind, row_id) not in seen.told:
            seen.told.add((kind, row_id))
            _log.error("%s %s not sealed: it failed verification before this change", kind, row_id)
    if appended:
        state = _with_end(connection, secret, state, min(appended))
    seals.put_state(connection, secret, state)


def _with_end(
    connection: Connection, secret: ServerSecret, state: seals.SealState, first: int
) -> seals.SealState:
    """The state with the new head of the audit log, after rows were appended."""
    head = audit.head_of(connection)
    # Appended and sealed by `seal_everything` in this transaction.
    if head == audit.Head(state.audit_seq, state.audit_mac):
        return state
    cut = audit.cut(connection, state, first)
    # A fault that is being recorded was verified already.
    if cut is not None and audit.rows(connection, 1)[0].action != audit.BROKEN:
        _log.error("audit log is incomplete: %s", cut)
        head = audit.record_fault(connection, secret, cut, time.time())
        # Its row is the head below, and must not count in the next transaction.
        raw_of(connection).execute("DELETE FROM temp.changed")
    return state._replace(audit_seq=head.seq, audit_mac=head.mac)
