"""Settles what ran when the last process died.

A reservation whose seal is valid is charged as it was marked. Rows that fail verification are
ignored. What a budget, which is sealed, has reserved and no valid row accounts for was edited or
deleted: it is charged whole, as the most that those requests may have taken. Where settled rows may
have been put back in place of those, all that the budget has reserved is.
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
    """What a budget has reserved for requests without a valid reservation.

    Attributes:
        tenant: whose it is.
        amounts: that are charged.
        period: of the budget.
        period_begin: when the present one began.
    """

    tenant: str
    amounts: Amounts
    period: str | None
    period_begin: int


class LostRequests(NamedTuple):
    """What a start has found.

    Attributes:
        settlements: of requests with a valid row.
        missing: what is charged beside them.
        refused: rows that are deleted.
        faults: to be audited.
    """

    settlements: Sequence[Settlement] = ()
    missing: Sequence[Missing] = ()
    refused: Sequence[int] = ()
    faults: Sequence[SealFault] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether nothing ran, and nothing is wrong."""
        return not (self.settlements or self.missing or self.refused)


def examine(
    connection: Connection,
    secret: ServerSecret,
    known: Mapping[str, Mark],
    faults: Sequence[SealFault],
) -> LostRequests:
    """See what the dead had reserved, and whether it is as they left it.

    Args:
        connection: to read with.
        secret: the server's.
        known: how far each had come, by reservation.
        faults: of the store's other rows: a budget that is not trusted tells nothing.
    """
    rows = its.read(connection, secret)
    ids = [row.entry.id for row in rows if row.entry is not None]
    settled = budget_ledger_sql.with_usage(connection, ids) if ids else set[str]()
    good = {row: row.entry for row in rows if row.entry is not None and row.id not in settled}
    bad = [row for row in rows if row not in good]
    found = [_fault(row) for row in bad]
    refused = [row.number for row in bad]
    missing: list[Missing] = []
    by_tenant = defaultdict[str, list[HeldReservation]](list)
    for row in good:
        by_tenant[row.tenant].append(row)
    for tenant, period, begin, *amounts in connection.execute(_BUDGETS):
        if integrity.doubts_budget(faults, tenant):
            continue
        has = Amounts(*amounts)
        current = [row for row in by_tenant[tenant] if _is_of(begin, row)]
        gap = has.less(its.sum_of(secret, (good[row] for row in current)))
        if gap == Amounts():
            continue
        what = "are not all there: it is charged for the missing"
        if not _is_told(secret, gap, tenant, bad, known):
            gap, what = has, "are not those of its budget: it is charged for all, the"
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
    """Write down what they took."""
    budget_ledger_sql.settle(connection, lost.settlements, secret)
    if lost.refused:
        _REMOVE.run(connection, numbers=json.dumps(lost.refused))
    now = int(time.time())
    for tenant, amounts, period, begin in lost.missing:
        # In the period of the budget, which may be over now.
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


def _is_told(
    secret: ServerSecret,
    gap: Amounts,
    tenant: str,
    bad: Sequence[HeldReservation],
    known: Mapping[str, Mark],
) -> bool:
    """Whether the edited rows are all that is missing, or one row that is marked.

    Then no settled one was put back among the valid rows.
    """
    edited = {row.id for row in bad if row.tenant == tenant}
    if gap.tags == sum(its.tag_of(secret, one) for one in edited):
        return True
    return any(gap.tags == its.tag_of(secret, one) for one in {*known, *(row.id for row in bad)})


def _at_its_mark(entry: LedgerEntry, known: Mapping[str, Mark]) -> Settlement:
    """Without a mark at its prompts."""
    asked = entry.asked
    generated, prompt, cached = known.get(entry.id) or Mark(0, asked.prompt_tokens, 0)
    if generated and not prompt:  # there is no answer to nothing
        prompt = asked.prompt_tokens
    prompt = min(prompt, asked.prompt_tokens)
    spent = Spent("lost", prompt, min(cached, prompt), min(generated, asked.most_tokens))
    return Settlement(entry, spent)
