"""Whether the store is as the daemon left it, what is trusted of it if not, and how it is accepted.

What is not as it was sealed lets nobody in: a key is refused, of a tenant or budget all keys are,
a price is none. Everybody else is served. Where it cannot be told which row of a table is wrong,
none of that table is trusted. The tenant of everybody stays: its operator has to mend the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection

from gatewayd.errors import Conflict
from gatewayd.store import shape
from gatewayd.store.tables import DEFAULT_TENANT
from gatewayd.tenants import audit, seals
from gatewayd.tenants.records import Everything
from gatewayd.tenants.seals import STATE, Fault
from gatewayd.tenants.secret import Secret

_MOST_TOLD = 5


class Report(NamedTuple):
    """What is wrong.

    Attributes:
        chain: with the audit, first; None for nothing.
        faults: with rows.
        changes: number of the last change of a row; 0 without a sealed state.
        verified: rows of the audit that need no second look; None for none.
    """

    chain: str | None
    faults: tuple[Fault, ...]
    changes: int
    verified: audit.Verified | None = None

    @property
    def all(self) -> list[str]:
        """A sentence for each."""
        return [*([] if self.chain is None else [self.chain]), *map(str, self.faults)]

    @property
    def sentence(self) -> str | None:
        """All of them, or how many; None for none."""
        told = self.all
        more = [f"{len(told) - _MOST_TOLD} more"] if len(told) > _MOST_TOLD else []
        return "; ".join([*told[:_MOST_TOLD], *more]) or None


class _UntrustedKey(NamedTuple):
    """Stands for keys that are not trusted: without any key authentication would be off."""

    id: str
    tenant: str = DEFAULT_TENANT
    revoked_at: int = 0


def begin(connection: Connection, secret: Secret, file: Path, at: float) -> bool:
    """Seal a store of an older program, once; on record, unless there is nothing to seal.

    Returns:
        Whether it was sealed now.
    """
    if shape.faults(connection):
        return False
    head = audit.head_of(connection)
    if not head.seq:
        # With nothing to seal it may be anew: a command had another secret than the daemon.
        is_open = seals.is_pristine(connection) and seals.state_of(connection, secret) is None
    else:
        is_open = not (seals.is_begun(connection) or audit.was_sealed(connection, secret))
    if not is_open or audit.fault(connection, secret, file) is not None:
        return False
    if head.seq:
        head = audit.append(
            connection,
            secret,
            at=at,
            actor="gatewayd",
            action=audit.SEALED,
            target="audit",
            detail={},
        )
    seals.seal_everything(connection, secret, 0, *head)
    return True


def examine(
    connection: Connection, secret: Secret, file: Path, since: audit.Verified | None = None
) -> Report:
    """Look through the audit, all sealed rows and what acts on them, in one transaction.

    Args:
        connection: to read with.
        secret: the server's.
        file: with the end of the audit.
        since: rows of the audit that were verified before; None to look through all of them.
    """
    chain, verified = audit.verify(connection, secret, file, since)
    state = seals.state_of(connection, secret)
    changes = 0 if state is None else state.changes
    planted = [Fault(STATE, "", sentence) for sentence in shape.faults(connection)]
    found = (*planted, *seals.faults(connection, secret))
    return Report(chain, found, changes, verified)


def accept(connection: Connection, secret: Secret, file: Path, at: float, actor: str) -> list[str]:
    """Trust the store as it is from now on; what was wrong is on record.

    Returns:
        What was wrong.

    Raises:
        Conflict: the database has a trigger or the like of somebody's, which would act here, too.
    """
    planted = shape.faults(connection)
    if planted:
        raise Conflict(
            f"mend that first, with the sqlite3 shell: {'; '.join(planted[:_MOST_TOLD])}"
        )
    report = examine(connection, secret, file)
    if not report.all:
        return []
    head = audit.append(
        connection,
        secret,
        at=at,
        actor=actor,
        action=audit.ACCEPT,
        target="audit",
        detail={"faults": report.all, "rows": audit.digest(connection)},
    )
    kept = audit.read(secret, file)
    seals.seal_everything(connection, secret, 0 if kept is None else kept.changes, *head)
    return report.all


def trusted(everything: Everything, faults: tuple[Fault, ...]) -> Everything:
    """What of the store lets anybody in."""
    if not faults:
        return everything
    doubted: dict[str, set[str]] = {kind: set() for kind in seals.TABLES}
    lost: set[str] = set()
    for fault in faults:
        if fault.kind == STATE:
            lost.update(seals.TABLES)
        elif not fault.id:
            lost.add(fault.kind)
        else:
            doubted[fault.kind].add(fault.id)

    def is_trusted(kind: str, row_id: str) -> bool:
        return kind not in lost and row_id not in doubted[kind]

    tenants = [
        row
        for row in everything.tenants
        if row.id == DEFAULT_TENANT
        or (is_trusted("tenants", row.id) and is_trusted("budgets", row.id))
    ]
    keys: list[Any] = [row for row in everything.keys if is_trusted("keys", row.id)]
    if "keys" in lost or doubted["keys"]:
        keys.append(_UntrustedKey(""))
    prices = [row for row in everything.prices if is_trusted("prices", row.model)]
    return Everything(tenants, cast("Any", keys), prices, frozenset(doubted["prices"]))
