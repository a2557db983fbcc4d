"""Seals of the rows that decide who may do what: tenants, keys, prices and budgets.

Each row has a seal over its content and a version, the number of the change that made it. A sealed
state has the last number and, for each table, what the versions of all rows add up to. An older row
has a lower version, whatever its seal says, so that the sum is too low: only all rows of one moment
fit the state of that moment. The state also has the end of the audit's chain at that moment.
"""

from __future__ import annotations

import hmac
import json
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table

from gatewayd.store.prepared import raw_of
from gatewayd.store.tables import DEFAULT_TENANT, budgets, keys, prices, tenants
from gatewayd.tenants.secret import Secret

TABLES = {table.name: table for table in (tenants, keys, prices, budgets)}
STATE = ""
"""The kind of a fault that leaves no row to be trusted."""


_USUAL = {
    "id": DEFAULT_TENANT,
    "tenant": DEFAULT_TENANT,
    "weight": 1.0,
    "service_class": "realtime",
    "retention_priority": 100,
    "retention_seconds": 86400,
}
"""Of the tenant of everybody, as migrations make it; the rest is 0 or not there."""


class Fault(NamedTuple):
    """What is wrong.

    Attributes:
        kind: the table; ``STATE`` for all of them.
        id: of the row; empty if it cannot be told which one.
        what: is wrong with it.
    """

    kind: str
    id: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind} {self.id} {self.what}".strip().replace("  ", " ")


class State(NamedTuple):
    """Of all seals.

    Attributes:
        changes: number of the last change.
        totals: by table, the sum of all versions.
        audit_seq: number of the last row of the audit then.
        audit_mac: its seal.
    """

    changes: int
    totals: dict[str, int]
    audit_seq: int
    audit_mac: str


def id_of(table: Table) -> str:
    """The column by which rows of a table are known."""
    (column,) = table.primary_key.columns
    return column.name


def content_of(table: Table, row: str = "") -> str:
    """SQL for all that a row has, as one text; columns without a value leave no trace in it.

    Args:
        table: of the row.
        row: ``OLD.`` or ``NEW.`` in a trigger.
    """

    def part(name: str) -> str:
        it = f'{row}"{name}"'
        # Not as it is written: a text may hold anything, and 17 digits of a number are one number.
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


def is_begun(connection: Connection) -> bool:
    """Whether there is any seal, of whomever."""
    query = "SELECT EXISTS (SELECT 1 FROM seals) OR EXISTS (SELECT 1 FROM seal_state)"
    (found,) = raw_of(connection).execute(query).fetchone()
    return bool(found)


def is_pristine(connection: Connection) -> bool:
    """Whether nobody has been promised anything yet, nor has used anything that counts."""
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
            others += any(value and value != _USUAL.get(name) for name, value in values.items())
    return not others


def state_of(connection: Connection, secret: Secret) -> State | None:
    """The sealed state; None if there is none, or it was changed."""
    row = (
        raw_of(connection)
        .execute(
            "SELECT changes, totals, audit_seq, audit_mac, mac FROM seal_state WHERE number = 1"
        )
        .fetchone()
    )
    if row is None or not _is(row[-1], _state_mac(secret, row[:-1])):
        return None
    changes, totals, seq, mac, _ = row
    return State(changes, json.loads(totals), seq, mac)


def put_state(connection: Connection, secret: Secret, state: State) -> None:
    """Seal a state."""
    row = (state.changes, json.dumps(state.totals), state.audit_seq, state.audit_mac)
    raw_of(connection).execute(_PUT_STATE, (*row, _state_mac(secret, row)))


def reseal(
    connection: Connection, secret: Secret, state: State, kind: str, row_id: str, old: str | None
) -> State | None:
    """Seal a row that has changed, if what it was before was as it was sealed.

    Args:
        connection: with the change.
        secret: the server's.
        state: until then.
        kind: the table.
        row_id: of the row.
        old: its content before; None if it was not there.

    Returns:
        The state after that; None if somebody else had changed the row before, which stays so.
    """
    raw = raw_of(connection)
    query = "SELECT version, mac FROM seals WHERE kind = ? AND id = ?"
    seal = raw.execute(query, (kind, row_id)).fetchone()
    version = 0
    if seal is not None:
        version, mac = seal
        if not _is(mac, _mac(secret, kind, row_id, version, old)):
            return None
    elif old is not None:
        return None
    found = raw.execute(_ONE[kind], (row_id,)).fetchone()
    changes = state.changes + 1
    mac = _mac(secret, kind, row_id, changes, None if found is None else found[0])
    raw.execute(_PUT, (kind, row_id, changes, mac))
    total = state.totals.get(kind, 0) + changes - version
    return state._replace(changes=changes, totals={**state.totals, kind: total})


def seal_everything(
    connection: Connection, secret: Secret, changes: int, audit_seq: int, audit_mac: str
) -> None:
    """Seal every row as it is, and nothing else.

    Args:
        connection: to write with.
        secret: the server's.
        changes: no number up to this one is used again.
        audit_seq: number of the audit's last row.
        audit_mac: its seal.
    """
    raw = raw_of(connection)
    state = state_of(connection, secret)
    if state is not None:
        changes = max(changes, state.changes)
    raw.execute("DELETE FROM seals")
    raw.execute("DELETE FROM seal_state")
    totals = dict.fromkeys(TABLES, 0)
    for kind in TABLES:
        for row_id, content in raw.execute(_ALL[kind]).fetchall():
            changes += 1
            totals[kind] += changes
            raw.execute(_PUT, (kind, row_id, changes, _mac(secret, kind, row_id, changes, content)))
    put_state(connection, secret, State(changes, totals, audit_seq, audit_mac))


def faults(connection: Connection, secret: Secret) -> list[Fault]:
    """Look through all rows and seals, in one transaction."""
    raw, state = raw_of(connection), state_of(connection, secret)
    if state is None:
        return [Fault(STATE, "", "the seals of tenants, keys, prices and budgets are missing")]
    found: list[Fault] = []
    seals: dict[str, dict[Any, tuple[Any, Any]]] = {kind: {} for kind in TABLES}
    for kind, row_id, version, mac in raw.execute("SELECT kind, id, version, mac FROM seals"):
        if kind in seals:
            seals[kind][row_id] = (version, mac)
    for kind in TABLES:
        found += _faults_of(raw, secret, state, kind, seals[kind])
    return found


def _faults_of(
    raw: Any,  # noqa: ANN401 - sqlite3's connection
    secret: Secret,
    state: State,
    kind: str,
    seals: dict[Any, tuple[Any, Any]],
) -> list[Fault]:
    found: list[Fault] = []
    total = sum(version for version, _ in seals.values() if isinstance(version, int))
    for row_id, content in raw.execute(_ALL[kind]):
        version, mac = seals.pop(row_id, (0, None))
        if mac is None:
            found.append(Fault(kind, _told(row_id), "has no seal: it was put in"))
        elif not _is(mac, _mac(secret, kind, row_id, version, content)):
            found.append(Fault(kind, _told(row_id), "was changed"))
        elif version > state.changes:
            found.append(Fault(kind, _told(row_id), "is of later than the rest"))
    for row_id, (version, mac) in seals.items():
        if not _is(mac, _mac(secret, kind, row_id, version, None)):
            found.append(Fault(kind, _told(row_id), "is missing"))
    if total != state.totals.get(kind):
        found.append(Fault(kind, "", "as a whole are not of one moment: an older row was put back"))
    return found


def _told(row_id: object) -> str:
    """The id of a row; empty, which is the whole table, for one of a type that none of ours has."""
    return row_id if isinstance(row_id, str) else ""


def _mac(secret: Secret, kind: str, row_id: object, version: object, content: str | None) -> str:
    """Over a row; over None for one that is gone."""
    said = json.dumps(["row", kind, row_id, version, content], default=repr)
    return secret.seal(said.encode())


def _state_mac(secret: Secret, row: tuple[Any, ...]) -> str:
    return secret.seal(json.dumps(["state", *row], default=repr).encode())


def _is(found: object, right: str) -> bool:
    return isinstance(found, str) and hmac.compare_digest(found.encode(), right.encode())
