"""Verifies the integrity of the store, decides what to trust if it fails, and accepts its state.

Rows that fail verification grant no access: a key is refused, all keys of a tenant or budget are,
a price counts as missing. Others are served. Where it is unknown which row of a table is wrong, no
row of it is trusted. The tenant ``default`` remains: its operator has to repair the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection

from gatewayd.errors import Conflict
from gatewayd.store import schema_check
from gatewayd.store.tables import DEFAULT_TENANT
from gatewayd.tenants.records import AccessRows
from gatewayd.tenants.tamper_evidence import audit, reservation_seals, seals
from gatewayd.tenants.tamper_evidence.seals import STATE, SealFault
from gatewayd.tenants.tamper_evidence.secret import ServerSecret

_MOST_TOLD = 5


class Report(NamedTuple):
    """The result of a verification.

    Attributes:
        chain: the first fault of the audit log; None for none.
        faults: faults of sealed rows and of the schema.
        changes: number of the last change of a row; 0 without a sealed state.
        verified: audit rows that need not be verified again; None for none.
    """

    chain: str | None
    faults: tuple[SealFault, ...]
    changes: int
    verified: audit.VerifiedAudit | None = None

    @property
    def all(self) -> list[str]:
        """All faults, a sentence each."""
        return [*([] if self.chain is None else [self.chain]), *map(str, self.faults)]

    @property
    def sentence(self) -> str | None:
        """The first faults and the number of others; None for none."""
        told = self.all
        more = [f"{len(told) - _MOST_TOLD} more"] if len(told) > _MOST_TOLD else []
        return "; ".join([*told[:_MOST_TOLD], *more]) or None


class _UntrustedKey(NamedTuple):
    """Stands for untrusted keys: without any key authentication would be off."""

    id: str
    tenant: str = DEFAULT_TENANT
    revoked_at: int = 0


def seal_once(connection: Connection, secret: ServerSecret, file: Path, at: float) -> bool:
    """Seal a store of an older version, once; audited, unless there is nothing to seal.

    Returns:
        Whether it was sealed now.
    """
    # A planted trigger could change what is sealed.
    if schema_check.faults(connection):
        return False
    head = audit.head_of(connection)
    if not head.seq:
        # A command may have used another secret than the daemon: an empty store is sealed again.
        is_open = seals.is_pristine(connection) and seals.state_of(connection, secret) is None
    else:
        is_open = not (seals.has_seals(connection) or audit.was_sealed(connection, secret))
    # Sealing a store with faults would accept them.
    if not is_open or audit.fault(connection, secret, file) is not None:
        return False
    # Audited first, so that the state sealed below has this row as its head.
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
    reservation_seals.seal_all(connection, secret)
    seals.seal_everything(connection, secret, 0, *head)
    return True


def seal_reservations_once(connection: Connection, secret: ServerSecret, report: Report) -> None:
    """Seal the reservations of a store of an older version, once; none where there are faults.

    A reservation without a seal afterwards was not written by the daemon.
    """
    state = seals.state_of(connection, secret)
    # Once: a later row without a seal was inserted from outside.
    if state is None or seals.RESERVATIONS in state.totals:
        return
    if not report.all:
        reservation_seals.seal_all(connection, secret)
    seals.put_state(
        connection, secret, state._replace(totals={**state.totals, seals.RESERVATIONS: 1})
    )


def examine(
    connection: Connection,
    secret: ServerSecret,
    file: Path,
    since: audit.VerifiedAudit | None = None,
) -> Report:
    """Verify the audit log, all sealed rows and the schema, in one transaction.

    Args:
        connection: to read with.
        secret: the server's.
        file: with the head of the audit log.
        since: audit rows that were verified before; None to verify all of them.
    """
    chain, verified = audit.verify(connection, secret, file, since)
    state = seals.state_of(connection, secret)
    changes = 0 if state is None else state.changes
    planted = [SealFault(STATE, "", sentence) for sentence in schema_check.faults(connection)]
    found = (*planted, *seals.faults(connection, secret))
    return Report(chain, found, changes, verified)


def accept(
    connection: Connection, secret: ServerSecret, file: Path, at: float, actor: str
) -> list[str]:
    """Accept the store as it is; the faults are audited.

    Returns:
        The faults.

    Raises:
        Conflict: the schema has foreign triggers or the like, which would act here, too.
    """
    planted = schema_check.faults(connection)
    if planted:
        raise Conflict(
            f"repair that first, with the sqlite3 shell: {'; '.join(planted[:_MOST_TOLD])}"
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
    # Not below the number in the head file, or each verification would report an older store.
    seals.seal_everything(connection, secret, 0 if kept is None else kept.changes, *head)
    return report.all


def doubts_budget(faults: Sequence[SealFault], tenant: str) -> bool:
    """Whether the budget of a tenant is not trusted."""
    return any(
        fault.kind == STATE or (fault.kind == "budgets" and fault.id in ("", tenant))
        for fault in faults
    )


def trusted(everything: AccessRows, faults: tuple[SealFault, ...]) -> AccessRows:
    """Filter the rows that grant access down to those that passed verification."""
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
        # Its operator repairs the rest, and needs no key for it.
        if row.id == DEFAULT_TENANT
        or (is_trusted("tenants", row.id) and is_trusted("budgets", row.id))
    ]
    keys: list[Any] = [row for row in everything.keys if is_trusted("keys", row.id)]
    if "keys" in lost or doubted["keys"]:
        keys.append(_UntrustedKey(""))
    prices = [row for row in everything.prices if is_trusted("prices", row.model)]
    return AccessRows(tenants, cast("Any", keys), prices, frozenset(doubted["prices"]))
