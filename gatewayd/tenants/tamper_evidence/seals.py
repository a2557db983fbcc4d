"""Seals (MACs) of the rows that authorize: tenants, keys, prices and budgets.

Each row has a MAC over its content and a version, the number of the change that wrote it. A sealed
state has the last number and, for each table, the sum of the versions of all rows. A restored older
row has a lower version and a valid MAC, but the sum is then too low: only rows of one state match
its sums. The state also has the head of the audit log's chain.
"""

from __future__ import annotations

import hmac
import json
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table

from gatewayd.store.prepared import raw_of
from gatewayd.store.tables import DEFAULT_TENANT, budgets, keys, prices, tenants
from gatewayd.tenants.tamper_evidence.secret import ServerSecret

TABLES = {table.name: table for table in (tenants, keys, prices, budgets)}
STATE = ""
"""The kind of a fault after which no row is trusted."""
RESERVATIONS = "reservations"
"""The kind of reservations' faults; a total of that name: they have seals, see ``SealState``."""


_USUAL = {
    "id": DEFAULT_TENANT,
    "tenant": DEFAULT_TENANT,
    "weight": 1.0,
    "service_class": "realtime",
    "retention_priority": 100,
    "retention_seconds": 86400,
}
"""Rows of the tenant ``default`` as migrations create them; other columns are 0 or NULL."""


class SealFault(NamedTuple):
    """A failed verification.

    Attributes:
        kind: the table; ``STATE`` for all of them.
        id: id of the row; empty if it is unknown.
        what: a description of the fault.
    """

    kind: str
    id: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind} {self.id} {self.what}".strip().replace("  ", " ")


class SealState(NamedTuple):
    """The sealed state of all rows.

    Attributes:
        changes: number of the last change.
        totals: by table, the sum of all versions; and 1 for reservations, whose seals are in their
            own rows, once all of them have some. Before, none had.
        audit_seq: number of the last audit row at that time.
        audit_mac: its MAC.
    """

    changes: int
    totals: dict[str, int]
    audit_seq: int
    audit_mac: str


def id_of(table: Table) -> str:
    """The name of a table's primary key column."""
    (column,) = table.primary_key.columns
    return column.name


def content_of(table: Table, row: str = "") -> str:
    """SQL for a canonical text of a row's content; NULL columns do not appear in it.

    Args:
        table: table of the row.
        row: ``OLD.`` or ``NEW.`` in a trigger.
    """

    def part(name: str) -> str:
        it = f'{row}"{name}"'
        # Hex, since text may contain delimiters; 17 digits identify a float.
        value = f"CASE typeof({it}) WHEN 'real' THEN printf('%!.17g', {it}) ELSE hex({it}) END"
        return f"CASE WHEN {it} IS NULL THEN '' ELSE ';{name}:' || typeof({it}) || {value} END"

    return " || ".join(part(column.name) for column in table.c)


_CONTENT = {name: content_of(table) for name, table in TABLES.items()}
_ONE = {
    name: f'SELECT {_CONTENT[name]} FROM {name} WHERE "{id_of(table)}" = ?'
    for name, table in TABLES.items()
}
_ALL = {
    name: f'SELECT "{id_of(table)}", {_CONTENT[name]} FROM {name} ORDER BY 1'
    for name, table in TABLES.items()
}
_PUT = (
    "INSERT INTO seals (kind, id, version, mac) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (kind, id) DO UPDATE SET version = excluded.version, mac = excluded.mac"
)
_PUT_STATE = (
    "INSERT INTO seal_state (number, changes, totals, audit_seq, audit_mac, mac) "
    "VALUES (1, ?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE SET changes = excluded.changes, "
    "totals = excluded.totals, audit_seq = excluded.audit_seq, audit_mac = excluded.audit_mac, "
    "mac = excluded.mac"
)


def has_seals(connection: Connection) -> bool:
    """Whether there is any seal, valid or not."""
    query = "SELECT EXISTS (SELECT 1 FROM seals) OR EXISTS (SELECT 1 FROM seal_state)"
    (found,) = raw_of(connection).execute(query).fetchone()
    return bool(found)


def is_pristine(connection: Connection) -> bool:
    """Whether there is nothing to protect: no tenants, keys, prices, limits or usage of budgets."""
    raw = raw_of(connection)
    (others,) = raw.execute(
        "SELECT (SELECT count(*) FROM tenants WHERE id <> ?) + (SELECT count(*) FROM keys) "
        "+ (SELECT count(*) FROM prices) + (SELECT count(*) FROM budgets WHERE tenant <> ?)",
        (DEFAULT_TENANT, DEFAULT_TENANT),
    ).fetchone()
    for table in (tenants, budgets):
        names = [column.name for column in table.c if column.name != "created_at"]
        query = f"SELECT {', '.join(names)} FROM {table.name}"
        for row in raw.execute(query):
            values = dict(zip(names, row, strict=True))
            # 0, NULL and empty text are what a new row has.
            others += any(value and value != _USUAL.get(name) for name, value in values.items())
    return not others


def state_of(connection: Connection, secret: ServerSecret) -> SealState | None:
    """The sealed state; None if it is missing, or fails verification."""
    row = (
        raw_of(connection)
        .execute(
            "SELECT changes, totals, audit_seq, audit_mac, mac FROM seal_state WHERE number = 1"
        )
        .fetchone()
    )
    # Verified before its JSON is parsed.
    if row is None or not _is(row[-1], _state_mac(secret, row[:-1])):
        return None
    changes, totals, seq, mac, _ = row
    return SealState(changes, json.loads(totals), seq, mac)


def put_state(connection: Connection, secret: ServerSecret, state: SealState) -> None:
    """Seal and store a state."""
    row = (state.changes, json.dumps(state.totals), state.audit_seq, state.audit_mac)
    raw_of(connection).execute(_PUT_STATE, (*row, _state_mac(secret, row)))


def reseal(
    connection: Connection,
    secret: ServerSecret,
    state: SealState,
    kind: str,
    row_id: str,
    old: str | None,
) -> SealState | None:
    """Seal a changed row, provided that its previous content matched its seal.

    Args:
        connection: connection of the change.
        secret: the server's.
        state: before the change.
        kind: the table.
        row_id: id of the row.
        old: its previous content; None if it did not exist.

    Returns:
        The state after the change; None if the previous content failed verification: the row keeps
        its old seal.
    """
    raw = raw_of(connection)
    query = "SELECT version, mac FROM seals WHERE kind = ? AND id = ?"
    seal = raw.execute(query, (kind, row_id)).fetchone()
    version = 0
    if seal is not None:
        version, mac = seal
        # The row was edited before this change: sealing it now would accept the edit.
        if not _is(mac, _mac(secret, kind, row_id, version, old)):
            return None
    # A row without a seal was inserted from outside.
    elif old is not None:
        return None
    found = raw.execute(_ONE[kind], (row_id,)).fetchone()
    # Deleted rows keep a seal over None, so that a restored one is noticed.
    changes = state.changes + 1
    mac = _mac(secret, kind, row_id, changes, None if found is None else found[0])
    raw.execute(_PUT, (kind, row_id, changes, mac))
    # Updated by the difference: the cost does not depend on the size of the table.
    total = state.totals.get(kind, 0) + changes - version
    return state._replace(changes=changes, totals={**state.totals, kind: total})


def seal_everything(
    connection: Connection, secret: ServerSecret, changes: int, audit_seq: int, audit_mac: str
) -> None:
    """Seal all present rows and drop all other seals.

    Args:
        connection: to write with.
        secret: the server's.
        changes: no number up to this one is used again.
        audit_seq: number of the last audit row.
        audit_mac: its MAC.
    """
    raw = raw_of(connection)
    state = state_of(connection, secret)
    if state is not None:
        # A number that is used twice would let an older row match its sum.
        changes = max(changes, state.changes)
    raw.execute("DELETE FROM seals")
    raw.execute("DELETE FROM seal_state")
    totals = {**dict.fromkeys(TABLES, 0), RESERVATIONS: 1}
    for kind in TABLES:
        for row_id, content in raw.execute(_ALL[kind]).fetchall():
            changes += 1
            totals[kind] += changes
            raw.execute(_PUT, (kind, row_id, changes, _mac(secret, kind, row_id, changes, content)))
    put_state(connection, secret, SealState(changes, totals, audit_seq, audit_mac))


def faults(connection: Connection, secret: ServerSecret) -> list[SealFault]:
    """Verify all rows and seals, in one transaction."""
    raw, state = raw_of(connection), state_of(connection, secret)
    if state is None:
        return [SealFault(STATE, "", "the seals of tenants, keys, prices and budgets are missing")]
    found: list[SealFault] = []
    seals: dict[str, dict[Any, tuple[Any, Any]]] = {kind: {} for kind in TABLES}
    for kind, row_id, version, mac in raw.execute("SELECT kind, id, version, mac FROM seals"):
        if kind in seals:
            seals[kind][row_id] = (version, mac)
    for kind in TABLES:
        found += _faults_of(raw, secret, state, kind, seals[kind])
    return found


def _faults_of(
    raw: Any,  # noqa: ANN401 - sqlite3's connection
    secret: ServerSecret,
    state: SealState,
    kind: str,
    seals: dict[Any, tuple[Any, Any]],
) -> list[SealFault]:
    found: list[SealFault] = []
    # Including seals of deleted rows.
    total = sum(version for version, _ in seals.values() if isinstance(version, int))
    for row_id, content in raw.execute(_ALL[kind]):
        version, mac = seals.pop(row_id, (0, None))
        if mac is None:
            found.append(
                SealFault(kind, _id_or_empty(row_id), "has no seal: it was inserted from outside")
            )
        elif not _is(mac, _mac(secret, kind, row_id, version, content)):
            found.append(SealFault(kind, _id_or_empty(row_id), "was changed"))
        # A valid seal of a state after the stored one.
        elif version > state.changes:
            found.append(SealFault(kind, _id_or_empty(row_id), "is newer than the sealed state"))
    # What is left has no row: valid for rows that the daemon deleted.
    for row_id, (version, mac) in seals.items():
        if not _is(mac, _mac(secret, kind, row_id, version, None)):
            found.append(SealFault(kind, _id_or_empty(row_id), "is missing"))
    if total != state.totals.get(kind):
        found.append(
            SealFault(kind, "", "do not match their sealed sum: an older row was restored")
        )
    return found


def _id_or_empty(row_id: object) -> str:
    """The id of a row; empty, for the whole table, if it is not text as all valid ids are."""
    return row_id if isinstance(row_id, str) else ""


def _mac(
    secret: ServerSecret, kind: str, row_id: object, version: object, content: str | None
) -> str:
    """The MAC of a row; ``content`` is None for a deleted one."""
    said = json.dumps(["row", kind, row_id, version, content], default=repr)
    return secret.seal(said.encode())


def _state_mac(secret: ServerSecret, row: tuple[Any, ...]) -> str:
    return secret.seal(json.dumps(["state", *row], default=repr).encode())


def _is(found: object, right: str) -> bool:
    return isinstance(found, str) and hmac.compare_digest(found.encode(), right.encode())
