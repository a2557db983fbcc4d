"""Tenancy of a store: directory, ledger and changes, with their verification."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine

from gatewayd.errors import StoreUnavailable
from gatewayd.store.database import Database
from gatewayd.store.errors import DATABASE_ERRORS, StoreError, reason_of
from gatewayd.tenants import records
from gatewayd.tenants.actions import TenantAction
from gatewayd.tenants.billing import (
    budget_ledger_sql as ledger_records,
)
from gatewayd.tenants.billing import (
    crash_marks as marks,
)
from gatewayd.tenants.billing import (
    recovery,
    usage_sums,
)
from gatewayd.tenants.billing.budget_ledger import BudgetLedger
from gatewayd.tenants.billing.costs import Settlement
from gatewayd.tenants.billing.crash_marks import Marks
from gatewayd.tenants.changes import TenantChanges
from gatewayd.tenants.directory import AccessRules, Directory, access_rules
from gatewayd.tenants.tamper_evidence import audit, integrity, sealing, seals
from gatewayd.tenants.tamper_evidence.secret import ServerSecret, secret_of

_log = logging.getLogger(__name__)

_PRUNED_AT_ONCE = 1000
_WHOLE_SECONDS = 3600.0
"""Interval of full verifications of the audit; in between only new rows are verified."""


class PreparedTenancy(NamedTuple):
    """Result of the preparation at start.

    Attributes:
        secret: the server's.
        lost: unsettled requests of the previous process, if the disk had no room to settle them.
        verified: verified rows of the audit.
        num_faults: number of faults of reservations.
    """

    secret: ServerSecret
    lost: Sequence[Settlement] = ()
    verified: audit.VerifiedAudit | None = None
    num_faults: int = 0


class _VerifiedStore(NamedTuple):
    """Result of a verification and reload.

    Attributes:
        report: faults that were found.
        found: the trusted access rules; None if they equal those loaded before.
        head: head of the audit.
    """

    report: integrity.Report
    found: AccessRules | None
    head: audit.Head


class Tenancy:
    """Tenants of a running daemon.

    Attributes:
        directory: authentication and accounts.
        ledger: usage and budgets.
        num_faults: faults of the audit and of sealed rows at the last verification, and of
            reservations at the start.

    Args:
        database: database of the store.
        folder: folder of the store.
        begun: result of ``prepare_tenancy``.
        believed: Unix time for budget periods: a clock that has just jumped starts no period.
    """

    def __init__(
        self,
        database: Database,
        folder: Path,
        begun: PreparedTenancy,
        believed: Callable[[], float] = time.time,
    ) -> None:
        try:
            self.ledger = BudgetLedger(database, Marks(folder / marks.NAME), begun.secret)
        except OSError as error:
            raise StoreError(f"{folder / marks.NAME} cannot be used: {error.strerror}") from error
        self.directory = Directory(begun.secret, self.ledger, believed=believed)
        self.num_faults = self._num_at_start = begun.num_faults
        self._database = database
        self._secret = begun.secret
        self._lost = begun.lost
        self._told: str | None = None
        self._noted: str | None = None
        self._verified = begun.verified
        self._whole_at = time.monotonic()
        self._loaded: AccessRules | None = None
        self._head = folder / audit.NAME
        self._believed = believed
        # One change and its reload at a time, or an older state might be loaded last.
        self._changing = asyncio.Lock()

    def load(self, connection: Connection) -> None:
        """Load the stored tenants, keys and prices."""
        self._apply(self._verify(connection, self._verified))

    def _verify(self, connection: Connection, since: audit.VerifiedAudit | None) -> _VerifiedStore:
        """Verify and read the store; the slow part, which runs in a thread."""
        report = integrity.examine(connection, self._secret, self._head, since)
        found = access_rules(integrity.trusted(records.read_access_rows(connection), report.faults))
        is_new = self._loaded is None or found != self._loaded
        return _VerifiedStore(report, found if is_new else None, audit.head_of(connection))

    def _apply(self, seen: _VerifiedStore) -> None:
        report = seen.report
        self._verified = report.verified
        self.num_faults, sentence = self._num_at_start + len(report.all), report.sentence
        # Once for each state: the verification runs each minute.
        if sentence is not None and sentence != self._told:
            _log.error("store integrity check failed, see `gatewayd audit`: %s", sentence)
        self._told = sentence
        if seen.found is not None:
            self.directory.load(seen.found)
            self._loaded = seen.found

    async def act(
        self, action: TenantAction, params: Mapping[str, str], body: object, actor: str
    ) -> Any:  # noqa: ANN401 - JSON
        """Run an action; a change is on the disk and in force when this returns.

        Raises:
            GatewayError: the action is refused, or the store cannot be used.
        """

        def work(connection: Connection) -> Any:  # noqa: ANN401 - JSON
            return action.run(self._desk(connection, actor), params, body)

        if not action.is_change:
            return await self._database.read(work)
        async with self._changing:
            answer = await self._database.write(work)
            await self._reload()
        return answer

    async def check(self) -> None:
        """Verify the store periodically: rows changed from outside are audited, and not trusted.

        Raises:
            StoreUnavailable: the store cannot be used.
        """
        # The ledger retries each until the disk has room.
        lost, self._lost = self._lost, ()
        for settlement in lost:
            if settlement.spent is not None:
                self.ledger.settle(settlement.entry, settlement.spent)
        async with self._changing:
            sentence = (await self._reload()).sentence
            if sentence is not None and sentence != self._noted:
                await self._database.write(
                    lambda c: audit.record_fault(c, self._secret, sentence, time.time())
                )
            self._noted = sentence

    async def _reload(self) -> integrity.Report:
        """Verify and reload the store."""
        now, since = time.monotonic(), self._verified
        # Rows that were verified before may have been edited since.
        if now - self._whole_at >= _WHOLE_SECONDS:
            since = None
        # In a reader's thread; only `_apply` runs on the event loop.
        seen = await self._database.read(lambda connection: self._verify(connection, since))
        if since is None:
            self._whole_at = now
        self._apply(seen)
        changes = seen.report.changes
        # After the commit: a head in the file that the store does not have would be a fault.
        await asyncio.to_thread(audit.write_head, self._secret, self._head, seen.head, changes)
        return seen.report

    async def record_change(
        self, actor: str, action: str, target: str, detail: dict[str, Any]
    ) -> None:
        """Audit a change that was made outside of the store; on the disk when this returns.

        Raises:
            GatewayError: the store cannot be used.
        """
        async with self._changing:
            await self._database.write(
                lambda connection: self._desk(connection, actor).record(action, target, **detail)
            )
            await self._reload()

    def has_tenant(self, name: str) -> bool:
        """Whether the tenant exists, or existed since the start and may still have KV pages."""
        return self.directory.has_account(name)

    def _desk(self, connection: Connection, actor: str) -> TenantChanges:
        now, believed = int(time.time()), int(self._believed())
        return TenantChanges(connection, self._secret, self._head, now, actor, believed)

    async def aggregate_usage(self, keep: int) -> None:
        """Aggregate usage rows beyond the ``keep`` latest single requests."""
        left = await self._database.read(lambda c: usage_sums.num_over(c, keep))
        while left > 0:
            # Bounded, since requests with a budget wait for the same writer.
            some = min(left, _PRUNED_AT_ONCE)
            await self._database.write(lambda c, some=some: usage_sums.aggregate(c, some))  # type: ignore[misc]
            left -= some

    async def prune(self, before: float) -> None:
        """Delete usage rows older than ``before``; budgets keep their sums."""

        def remove(connection: Connection) -> int:
            return ledger_records.remove_older(connection, before, _PRUNED_AT_ONCE)

        while await self._database.write(remove) == _PRUNED_AT_ONCE:
            pass

    def close(self, submit: Callable[[Callable[[Connection], None]], object]) -> None:
        """Hand pending settlements to the final writer."""

        def hand(left: list[Settlement]) -> None:
            submit(lambda connection: ledger_records.settle(connection, left, self._secret))

        self.ledger.close(hand)


def prepare_tenancy(engine: Engine, folder: Path) -> PreparedTenancy:
    """Prepare the store at start: secret, seals, audit, and requests of a dead process. Blocks.

    A full disk is tolerated: what cannot be written now is written later.

    Raises:
        StoreError: the secret or the store cannot be used.
    """
    secret, file = secret_of(folder, os.environ), folder / audit.NAME
    # Before the first write, so that every change of this process is sealed.
    sealing.seal_changes(engine, secret)
    try:
        with engine.begin() as connection:
            if integrity.seal_once(connection, secret, file, time.time()):
                _log.info("sealed the tenants, keys, prices and budgets of the store %s", folder)
            # After sealing an older store, before requests of the previous process are settled.
            report = integrity.examine(connection, secret, file)
            integrity.seal_reservations_once(connection, secret, report)
            known = marks.read_marks(folder / marks.NAME)
            lost = recovery.examine(connection, secret, known, report.faults)
        _record_fault(
            engine, secret, report._replace(faults=(*report.faults, *lost.faults)).sentence
        )
        left = _settle_lost(engine, secret, lost)
        with engine.execution_options(readonly=True).begin() as connection:
            head = audit.head_of(connection)
    except DATABASE_ERRORS as error:
        reason = reason_of(error) or error
        raise StoreError(f"the store {folder} cannot be used: {reason}") from error
    # Also after a fault: it is in the audit, whose head has moved.
    audit.write_head(secret, file, head, report.changes)
    return PreparedTenancy(secret, left, report.verified, len(lost.faults))


def _record_fault(engine: Engine, secret: ServerSecret, fault: str | None) -> None:
    """Record a fault first: later rows would hide a truncated end of the log."""
    if fault is None:
        return
    _log.error("store integrity check failed: %s", fault)
    try:
        with engine.begin() as connection:
            audit.record_fault(connection, secret, fault, time.time())
    except StoreUnavailable as error:
        _log.error("cannot write audit record for the integrity fault yet: %s", error.message)
    except DATABASE_ERRORS as error:
        if reason_of(error) is None:
            raise
        _log.error("cannot write audit record for the integrity fault yet: %s", reason_of(error))


def _settle_lost(
    engine: Engine, secret: ServerSecret, lost: recovery.LostRequests
) -> Sequence[Settlement]:
    """Settle requests of the previous process; return those that could not be written."""
    if lost.is_empty:
        return ()
    try:
        with engine.begin() as connection:
            recovery.settle(connection, lost, secret)
    except DATABASE_ERRORS as error:
        if reason_of(error) is None:
            raise
        _log.error(
            "%d requests were running when the previous process died; they are settled once "
            "the store is writable: %s",
            len(lost.settlements),
            reason_of(error),
        )
        return lost.settlements
    if lost.settlements:
        _log.warning(
            "settled %d requests that were running when the previous process died",
            len(lost.settlements),
        )
    return ()


def act_offline(
    engine: Engine,
    folder: Path,
    action: TenantAction,
    params: Mapping[str, str],
    body: object,
    actor: str,
) -> Any:  # noqa: ANN401 - JSON
    """Run an action while no daemon runs. Blocks.

    Raises:
        GatewayError: the action is refused.
        StoreError: the store cannot be used.
    """
    secret, file = prepare_tenancy(engine, folder).secret, folder / audit.NAME
    with engine.begin() as connection:
        now = int(time.time())
        desk = TenantChanges(connection, secret, file, now, actor, now)
        answer = action.run(desk, params, body)
    if action.is_change:
        with engine.execution_options(readonly=True).begin() as connection:
            head, state = audit.head_of(connection), seals.state_of(connection, secret)
        audit.write_head(secret, file, head, 0 if state is None else state.changes)
    return answer
