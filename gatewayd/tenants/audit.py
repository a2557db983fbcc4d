"""Who changed what: rows of which each seals the one before.

An edit, a row taken out and one put in break the chain. Rows cut off its end do not: so the last
seal is also kept beside the store, in a file that is written after each change. Where both are gone
there are still the tenants and keys, which are never deleted, and each of which was put on record.
Whoever has the server's secret can forge all of it.
"""

from __future__ import annotations

import hmac
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, func, insert, select

from gatewayd.store.tables import DEFAULT_TENANT, audit, keys, tenants
from gatewayd.tenants.secret import Secret

NAME = "audit.head"
_FIRST = ""


class Row(NamedTuple):
    """One change; in the order of the table's columns.

    Attributes:
        seq: from 1.
        at: Unix time.
        actor: who did it.
        action: what.
        target: to what.
        detail: the rest, as JSON; never a secret.
        mac: seal over all that and the seal before.
    """

    seq: int
    at: int
    actor: str
    action: str
    target: str
    detail: str
    mac: str


class Head(NamedTuple):
    """The end of the chain: how many rows, and the last one's seal."""

    seq: int
    mac: str


def append(
    connection: Connection,
    secret: Secret,
    *,
    at: float,
    actor: str,
    action: str,
    target: str,
    detail: dict[str, Any],
) -> Head:
    """Add a row, in the transaction of the change that it tells of."""
    last = head_of(connection)
    row = Row(last.seq + 1, int(at), actor, action, target, _text(detail), "")
    row = row._replace(mac=_seal(secret, last.mac, row))
    connection.execute(insert(audit).values(row._asdict()))
    return Head(row.seq, row.mac)


def has(connection: Connection, action: str, detail: dict[str, Any]) -> bool:
    """Whether something is on record already."""
    query = select(audit.c.seq).where(audit.c.action == action, audit.c.detail == _text(detail))
    return connection.execute(query.limit(1)).first() is not None


def head_of(connection: Connection) -> Head:
    """The end of the chain as the store has it."""
    query = select(audit.c.seq, audit.c.mac).order_by(audit.c.seq.desc()).limit(1)
    found = connection.execute(query).one_or_none()
    return Head(0, _FIRST) if found is None else Head(*found)


def rows(connection: Connection, most: int) -> list[Row]:
    """The last ones, the latest first."""
    query = select(audit).order_by(audit.c.seq.desc()).limit(most)
    return [Row(*row) for row in connection.execute(query)]


def fault(connection: Connection, secret: Secret, file: Path) -> str | None:
    """Look through all of it.

    Args:
        connection: to read with.
        secret: the server's.
        file: with the end of the chain.

    Returns:
        What is wrong first, in a sentence; None if nothing is.
    """
    kept, before = _read(secret, file), Head(0, _FIRST)
    for row in map(Row._make, connection.execute(select(audit).order_by(audit.c.seq))):
        if row.seq != before.seq + 1:
            return f"audit row {before.seq + 1} is missing"
        if not hmac.compare_digest(row.mac, _seal(secret, before.mac, row)):
            return f"audit row {row.seq} was changed"
        before = Head(row.seq, row.mac)
        if kept is not None and kept.seq == row.seq and kept.mac != row.mac:
            return f"audit row {row.seq} is not the one that {file.name} ends with"
    if (made := _made(connection)) > before.seq:
        return f"audit rows are missing: {before.seq} tell of {made} tenants and keys"
    if kept is None:
        return None if before.seq <= 1 else f"{file.name} is missing or was changed"
    if kept.seq > before.seq:
        return f"audit rows {before.seq + 1} to {kept.seq} are missing at the end"
    return None


def _made(connection: Connection) -> int:
    """How many changes there must have been at least: rows of tenants and keys stay."""
    others = select(func.count()).select_from(tenants).where(tenants.c.id != DEFAULT_TENANT)
    both = (others, select(func.count()).select_from(keys))
    return sum(int(connection.execute(query).scalar_one()) for query in both)


def keep(secret: Secret, file: Path, head: Head) -> None:
    """Put the end of the chain beside the store. Blocks."""
    if not head.seq:
        return
    content = {**head._asdict(), "seal": _seal_of(secret, head)}
    draft = file.with_suffix(".part")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(content).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.rename(file)


def _text(detail: dict[str, Any]) -> str:
    return json.dumps(detail, sort_keys=True, separators=(",", ":"))


def _read(secret: Secret, file: Path) -> Head | None:
    try:
        found = msgspec.json.decode(file.read_bytes(), type=dict[str, str | int])
        head = Head(int(found["seq"]), str(found["mac"]))
        is_ours = hmac.compare_digest(str(found["seal"]), _seal_of(secret, head))
    except (OSError, ValueError, KeyError):
        return None
    return head if is_ours else None


def _seal_of(secret: Secret, head: Head) -> str:
    return secret.seal(f"head {head.seq} {head.mac}".encode())


def _seal(secret: Secret, before: str, row: Row) -> str:
    """As JSON, so that no field can be read as a part of another."""
    return secret.seal(json.dumps([before, *row[:-1]]).encode())
