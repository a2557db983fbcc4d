"""Audit log of changes: a chain of rows, each sealing its predecessor.

An edited, deleted or inserted row breaks the chain. Truncation at the end does not: therefore the
last seal is also part of the sealed state of the rows that the log describes (``tenants.seals``),
and is written to a file beside the store after each change, and to the daemon's log. If all those
are lost, there are still the tenants and keys, which are never deleted and each of which was
audited. An attacker with the server's secret can forge all of it; one who restores an old copy of
everything is detected only by the daemon's log.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, func, insert, select

from gatewayd.errors import StoreUnavailable
from gatewayd.store import atomic_files
from gatewayd.store.tables import DEFAULT_TENANT, audit, keys, tenants
from gatewayd.tenants.tamper_evidence import seals
from gatewayd.tenants.tamper_evidence.secret import ServerSecret

_log = logging.getLogger(__name__)
_ends = logging.getLogger("gatewayd.tenants.tamper_evidence.audit.head")
_ends.setLevel(logging.INFO)  # whatever [log] level says: evidence outside of the store

NAME = "audit.head"
BROKEN = "audit.broken"
ACCEPT = "audit.accept"
SEALED = "seals.begin"
_FIRST = ""
_FIRST_SEALED = "sealed"
"""Predecessor of the first row in a store whose rows were sealed before."""


class AuditRow(NamedTuple):
    """One audited change; fields in the order of the table's columns.

    Attributes:
        seq: number of the row, from 1.
        at: Unix time.
        actor: who made the change.
        action: kind of the change.
        target: changed object.
        detail: further fields, as JSON; never a secret.
        mac: seal over all fields and the previous row's seal.
    """

    seq: int
    at: int
    actor: str
    action: str
    target: str
    detail: str
    mac: str


class Head(NamedTuple):
    """The end of the chain: number and seal of the last row."""

    seq: int
    mac: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.mac}"


class HeadFile(NamedTuple):
    """Content of ``audit.head``, the file beside the database.

    Attributes:
        head: head of the chain.
        changes: number of changes of sealed rows until then; 0 in files of older programs.
    """

    head: Head
    changes: int


class VerifiedAudit(NamedTuple):
    """Rows that passed verification.

    Attributes:
        head: the last of them.
        digest: SHA-256 over all of them, to continue from a copy.
    """

    head: Head
    digest: hashlib._Hash


def append(
    connection: Connection,
    secret: ServerSecret,
    *,
    at: float,
    actor: str,
    action: str,
    target: str,
    detail: dict[str, Any],
) -> Head:
    """Append a row, in the transaction of the change that it describes.

    Raises:
        StoreUnavailable: the store discards it.
    """
    last = head_of(connection)
    before = last.mac
    # Tells `was_sealed` that there were seals, even if they are deleted later.
    if not last.seq and seals.has_seals(connection):
        before = _FIRST_SEALED
    row = AuditRow(last.seq + 1, int(at), actor, action, target, _text(detail), "")
    row = row._replace(mac=_seal(secret, before, row))
    # A trigger planted in the database may drop the row without an error.
    if connection.execute(insert(audit).values(row._asdict())).rowcount != 1:
        raise StoreUnavailable("the audit log cannot be written: see gatewayd audit")
    return Head(row.seq, row.mac)


def record_fault(connection: Connection, secret: ServerSecret, fault: str, at: float) -> Head:
    """Record a fault, unless the last row records the same."""
    detail = {"fault": fault}
    last = rows(connection, 1)
    # The same fault is found at each verification until it is repaired or accepted.
    if last and (last[0].action, last[0].detail) == (BROKEN, _text(detail)):
        return Head(last[0].seq, last[0].mac)
    return append(
        connection,
        secret,
        at=at,
        actor="gatewayd",
        action=BROKEN,
        target="audit",
        detail=detail,
    )


def has_row(connection: Connection, head: Head) -> bool:
    """Whether the log has a row with this number and seal."""
    query = select(audit.c.mac).where(audit.c.seq == head.seq)
    return connection.execute(query).scalar() == head.mac


def head_of(connection: Connection) -> Head:
    """The end of the chain as the store has it."""
    query = select(audit.c.seq, audit.c.mac).order_by(audit.c.seq.desc()).limit(1)
    found = connection.execute(query).one_or_none()
    return Head(0, _FIRST) if found is None else Head(*found)


def rows(connection: Connection, most: int) -> list[AuditRow]:
    """The last ``most`` rows, latest first."""
    query = select(audit).order_by(audit.c.seq.desc()).limit(most)
    return [AuditRow(*row) for row in connection.execute(query)]


def was_sealed(connection: Connection, secret: ServerSecret) -> bool:
    """Whether the log records that rows were sealed."""
    query = select(audit.c.seq).where(audit.c.action == SEALED).limit(1)
    if connection.execute(query).first() is not None:
        return True
    first = connection.execute(select(audit).where(audit.c.seq == 1)).one_or_none()
    return first is not None and _is_sealed(secret, _FIRST_SEALED, AuditRow(*first))


def digest(connection: Connection) -> str:
    """Digest of all rows as they are, which an operator accepts."""
    total = hashlib.sha256()
    for row in map(AuditRow._make, connection.execute(select(audit).order_by(audit.c.seq))):
        total.update(_said(*row))
    return total.hexdigest()


def fault(connection: Connection, secret: ServerSecret, file: Path) -> str | None:
    """Verify the whole log.

    Args:
        connection: to read with.
        secret: the server's.
        file: with the end of the chain.

    Returns:
        The first fault; None if there is none, or it was accepted.
    """
    return verify(connection, secret, file, None)[0]


def verify(
    connection: Connection, secret: ServerSecret, file: Path, since: VerifiedAudit | None
) -> tuple[str | None, VerifiedAudit | None]:
    """Verify the rows that follow those verified before, or all of them.

    Of the rows verified before only the number and the last MAC are compared; if these differ, all
    rows are verified.

    Args:
        connection: to read with.
        secret: the server's.
        file: with the head of the chain.
        since: rows verified before; None to verify all.

    Returns:
        The first fault, as ``fault``; and the verified rows, None unless all rows are valid.
    """
    kept = read(secret, file)
    if since is None or not _holds(connection, since, kept):
        since = VerifiedAudit(Head(0, _FIRST), hashlib.sha256())
    # A copy: hashing into `since` itself would spoil it for a later verification.
    before, so_far = since.head, since.digest.copy()
    found: str | None = None
    # From the beginning without a condition, so that numbers below 1 are found, too.
    query = select(audit).where(audit.c.seq > before.seq) if before.seq else select(audit)
    for row in map(AuditRow._make, connection.execute(query.order_by(audit.c.seq))):
        is_sealed = _is_sealed(secret, before.mac, row) or (
            not before.seq and _is_sealed(secret, _FIRST_SEALED, row)
        )
        # An operator has accepted exactly the rows so far: earlier faults do not count.
        if is_sealed and _accepts(row, so_far.hexdigest()):
            found = None
        elif found is None:
            found = _fault_of(row, before, kept, file.name, is_sealed=is_sealed)
        before = Head(row.seq, row.mac)
        so_far.update(_said(*row))
    verified = VerifiedAudit(before, so_far) if found is None else None
    return found or _fault_of_end(connection, secret, file.name, kept, before), verified


def _holds(connection: Connection, since: VerifiedAudit, kept: HeadFile | None) -> bool:
    """Whether the verified rows are still present, by number, head and the head file."""
    head = since.head
    query = select(func.count()).select_from(audit).where(audit.c.seq <= head.seq)
    if connection.execute(query).scalar_one() != head.seq:
        return False
    # The file may be older than the store, after a kill between commit and write.
    if kept is not None and 0 < kept.head.seq <= head.seq and not has_row(connection, kept.head):
        return False
    return not head.seq or has_row(connection, head)


def _fault_of(
    row: AuditRow, before: Head, kept: HeadFile | None, name: str, *, is_sealed: bool
) -> str | None:
    if row.seq != before.seq + 1:
        return f"audit row {before.seq + 1} is missing"
    if not is_sealed:
        return f"audit row {row.seq} was changed"
    if kept is not None and kept.head.seq == row.seq and kept.head.mac != row.mac:
        return f"audit row {row.seq} is not the one that {name} ends with"
    return None


def _fault_of_end(
    connection: Connection, secret: ServerSecret, name: str, kept: HeadFile | None, end: Head
) -> str | None:
    state = seals.state_of(connection, secret)
    # The sealed state first: it is written in the same transaction as the row.
    if state is not None and (found := cut(connection, state, end.seq + 1)) is not None:
        return found
    if state is None and (made := _made(connection)) > end.seq:
        return f"audit rows are missing: {end.seq} cannot record {made} tenants and keys"
    # After the first row the process may have been killed before it wrote the file.
    if kept is None:
        return None if end.seq <= 1 else f"{name} is missing or was changed"
    if kept.head.seq > end.seq:
        return f"audit rows {end.seq + 1} to {kept.head.seq} are missing at the end"
    if state is not None and kept.changes > state.changes:
        return (
            f"the store is older than {name}, which records {kept.changes} changes of tenants, "
            f"keys, prices and budgets: it has {state.changes}"
        )
    return None


def cut(connection: Connection, state: seals.SealState, following: int) -> str | None:
    """The fault at the end of the chain according to the sealed state; None for none.

    Args:
        connection: to read with.
        state: sealed state of the rows that the log describes.
        following: number of the first row after the end.
    """
    if state.audit_seq >= following:
        return f"audit rows {following} to {state.audit_seq} are missing at the end"
    if state.audit_seq < following - 1:
        return f"the seals of the store are older than audit row {state.audit_seq + 1}"
    last = connection.execute(select(audit.c.mac).where(audit.c.seq == state.audit_seq)).scalar()
    if (last or _FIRST) != state.audit_mac:
        return f"audit row {state.audit_seq} is not the one that was the last"
    return None


def _made(connection: Connection) -> int:
    """Minimum number of audited changes: rows of tenants and keys are never deleted."""
    others = select(func.count()).select_from(tenants).where(tenants.c.id != DEFAULT_TENANT)
    both = (others, select(func.count()).select_from(keys))
    return sum(int(connection.execute(query).scalar_one()) for query in both)


def write_head(secret: ServerSecret, file: Path, head: Head, changes: int) -> None:
    """Write the head of the chain to its file beside the store, and to the log. Blocks.

    On a full disk the file is not updated: the sealed state has the head, too.

    Args:
        secret: the server's.
        file: to write.
        head: head of the chain.
        changes: number of changes of sealed rows so far.
    """
    kept, before = HeadFile(head, changes), read(secret, file)
    # Unchanged files are not rewritten: the disk may be full.
    if not head.seq or kept == before:
        return
    if before is None or before.head != head:
        # An attacker with the store cannot change a log elsewhere; see gatewayd audit --head.
        _ends.info("the audit ends with %s", head)
    content = {**head._asdict(), "changes": changes, "seal": _seal_of(secret, kept)}
    try:
        atomic_files.replace(file, json.dumps(content).encode() + b"\n")
    except OSError as error:
        _log.warning("cannot write %s: %s", file, error.strerror)


def _text(detail: dict[str, Any]) -> str:
    return json.dumps(detail, sort_keys=True, separators=(",", ":"))


def read(secret: ServerSecret, file: Path) -> HeadFile | None:
    """The content of the head file; None if it is missing, or its seal is wrong."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=dict[str, str | int])
        head = Head(int(found["seq"]), str(found["mac"]))
        # Without a number in files of older programs.
        kept = HeadFile(head, int(found.get("changes", 0)))
        is_ours = hmac.compare_digest(str(found["seal"]).encode(), _seal_of(secret, kept).encode())
    except (OSError, ValueError, KeyError):
        return None
    return kept if is_ours else None


def _seal_of(secret: ServerSecret, kept: HeadFile) -> str:
    # As older programs sealed it, where there is no number.
    told = f" {kept.changes}" if kept.changes else ""
    return secret.seal(f"head {kept.head.seq} {kept.head.mac}{told}".encode())


def _accepts(row: AuditRow, so_far: str) -> bool:
    """Whether an operator has accepted all earlier rows as they are."""
    if row.action != ACCEPT:
        return False
    found = json.loads(row.detail)
    return isinstance(found, dict) and found.get("rows") == so_far


def _seal(secret: ServerSecret, before: str, row: AuditRow) -> str:
    return secret.seal(_said(before, *row[:-1]))


def _is_sealed(secret: ServerSecret, before: str, row: AuditRow) -> bool:
    right = _seal(secret, before, row)
    return isinstance(row.mac, str) and hmac.compare_digest(row.mac.encode(), right.encode())


def _said(*values: object) -> bytes:
    """Encode values as JSON, so that no field can be read as a part of another."""
    return json.dumps(values, default=repr).encode()
