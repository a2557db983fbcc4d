"""Settles requests that were running when the previous process died.

A reservation whose seal is valid is charged at its crash mark. Rows that fail verification are
ignored. Amounts that a budget, which is sealed, has reserved and no valid row accounts for belong
to edited or deleted rows: they are charged in full, the maximum of those requests. Where settled
rows may have been restored in place of those, the whole reserved amount is charged.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, literal_column, select

from gatewayd.store.prepared import PreparedStatement
from gatewayd.store.tables import budgets, reservations
from gatewayd.tenants.billing import budget_ledger_sql
from gatewayd.tenants.billing.costs import LedgerEntry, Settlement, Spent
from gatewayd.tenants.billing.crash_marks import Mark
from gatewayd.tenants.billing.periods import begin_of
from gatewayd.tenants.tamper_evidence import integrity
from gatewayd.tenants.tamper_evidence import reservation_seals as its
from gatewayd.tenants.tamper_evidence.reservation_seals import Amounts, HeldReservation
from gatewayd.tenants.tamper_evidence.seals import RESERVATIONS, SealFault
from gatewayd.tenants.tamper_evidence.secret import ServerSecret

_REMOVE = PreparedStatement(
    delete(reservations).where(
        literal_column("rowid").in_(
            select(func.json_each(bindparam("numbers")).table_valued("value").c.value)
        )
    )
)
_BUDGETS = select(
    budgets.c.tenant,
    budgets.c.budget_period,
    budgets.c.period_begin,
    budgets.c.reserved_tokens,
    budgets.c.reserved_micros,
    func.coalesce(budgets.c.reserved_tags, 0).label("reserved_tags"),
)


class Missing(NamedTuple):
    """Reserved amounts of a budget that no valid reservation accounts for.

    Attributes:
        tenant: tenant of the budget.
        amounts: to be charged.
        period: kind of the budget's period.
        period_begin: begin of its present period.
    """

    tenant: str
    amounts: Amounts
    period: str | None
    period_begin: int


class LostRequests(NamedTuple):
    """Requests that the previous process left unsettled.

    Attributes:
        settlements: settlements of requests with a valid row.
        missing: additional charges without a valid row.
        refused: numbers of the rows to delete.
        faults: to be audited.
    """

    settlements: Sequence[Settlement] = ()
    missing: Sequence[Missing] = ()
    refused: Sequence[int] = ()
    faults: Sequence[SealFault] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to settle, charge or delete."""
        return not (self.settlements or self.missing or self.refused)


def examine(
    connection: Connection,
    secret: ServerSecret,
    known: Mapping[str, Mark],
    faults: Sequence[SealFault],
) -> LostRequests:
    """Verify the reservations of the previous process and compute their settlements.

    Args:
        connection: to read with.
        secret: the server's.
        known: crash marks by reservation.
        faults: faults of the store's other rows: a budget that is not trusted is skipped.
    """
    rows = its.read(connection, secret)
    ids = [row.entry.id for row in rows if row.entry is not None]
    settled = budget_ledger_sql.with_usage(connection, ids) if ids else set[str]()
    # Valid seal and not settled yet.
    good = {row: row.entry for row in rows if row.entry is not None and row.id not in settled}
    bad = [row for row in rows if row not in good]
    found = [_fault(row) for row in bad]
    refused = [row.number for row in bad]
    missing: list[Missing] = []
    by_tenant = defaultdict[str, list[HeldReservation]](list)
    for row in good:
        by_tenant[row.tenant].append(row)
    for tenant, period, begin, *amounts in connection.execute(_BUDGETS):
        # Its amounts may be edited themselves; its keys are refused anyway.
        if integrity.doubts_budget(faults, tenant):
            continue
        has = Amounts(*amounts)
        current = [row for row in by_tenant[tenant] if _is_of(begin, row)]
        gap = has.less(its.sum_of(secret, (good[row] for row in current)))
        # The sealed budget and its rows agree.
        if gap == Amounts():
            continue
        what = "are not all there: it is charged for the missing"
        if not _is_explained(secret, gap, tenant, bad, known):
            gap, what = has, "are not those of its budget: it is charged for all, the"
            # Settled rows may be among them, which a valid seal does not show.
            refused += [row.number for row in current]
            for row in current:
                del good[row]
        if gap != Amounts():
            missing.append(Missing(tenant, gap, period, begin))
        told = f"{what} {gap.tokens} tokens and {gap.micros} millionths"
        found.append(SealFault(RESERVATIONS, f"of {tenant}", told))
    return LostRequests(
        [_at_its_mark(entry, known) for entry in good.values()], missing, refused, found
    )


def settle(connection: Connection, lost: LostRequests, secret: ServerSecret) -> None:
    """Record the settlements and charges, and delete invalid rows."""
    budget_ledger_sql.settle(connection, lost.settlements, secret)
    if lost.refused:
        _REMOVE.run(connection, numbers=json.dumps(lost.refused))
    now = int(time.time())
    for tenant, amounts, period, begin in lost.missing:
        # In the period of the budget, which may be over by now.
        # Otherwise at the begin of that period, so that a report of it includes them.
        at = now if begin_of(period, now) == begin else begin
        budget_ledger_sql.charge(connection, tenant, amounts, at)


def _fault(row: HeldReservation) -> SealFault:
    if row.entry is not None:
        what = "was settled before: an older row was restored"
    elif row.has_seal:
        what = "was changed"
    else:
        what = "has no seal: it was inserted from outside"
    return SealFault(RESERVATIONS, row.id[:64], f"of {row.tenant[:64]} {what}")


def _is_of(period_begin: int, row: HeldReservation) -> bool:
    came = -1 if row.entry is None else row.entry.created_at
    return came >= period_begin or row.period_begin == period_begin


def _is_explained(
    secret: ServerSecret,
    gap: Amounts,
    tenant: str,
    bad: Sequence[HeldReservation],
    known: Mapping[str, Mark],
) -> bool:
    """Whether the edited rows, or one marked row, account for the whole gap.

    If so, no settled row was restored among the valid rows.
    """
    edited = {row.id for row in bad if row.tenant == tenant}
    # The tags that are missing are those of the edited rows.
    if gap.tags == sum(its.tag_of(secret, one) for one in edited):
        return True
    return any(gap.tags == its.tag_of(secret, one) for one in {*known, *(row.id for row in bad)})


def _at_its_mark(entry: LedgerEntry, known: Mapping[str, Mark]) -> Settlement:
    """Settle a request at its crash mark; without one, at its prompt."""
    asked = entry.asked
    generated, prompt, cached = known.get(entry.id) or Mark(0, asked.prompt_tokens, 0)
    if generated and not prompt:  # tokens are never generated without a computed prompt
        prompt = asked.prompt_tokens
    prompt = min(prompt, asked.prompt_tokens)
    # Bounded by what was reserved, since marks are not sealed.
    spent = Spent("lost", prompt, min(cached, prompt), min(generated, asked.most_tokens))
    return Settlement(entry, spent)
