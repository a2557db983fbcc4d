"""Periods of budgets: advancing to the next period, and changing the kind of period."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, literal_column, select, update

from gatewayd.store.prepared import PreparedStatement
from gatewayd.store.tables import budgets, reservations, usage
from gatewayd.tenants.billing.periods import begin_of
from gatewayd.tenants.tamper_evidence import reservation_seals
from gatewayd.tenants.tamper_evidence.reservation_seals import Amounts
from gatewayd.tenants.tamper_evidence.secret import ServerSecret

_BUDGET = PreparedStatement(
    select(budgets.c.budget_period, budgets.c.period_begin).where(
        budgets.c.tenant == bindparam("whose")
    )
)
_RESERVED = PreparedStatement(
    select(
        budgets.c.reserved_tokens,
        budgets.c.reserved_micros,
        func.coalesce(budgets.c.reserved_tags, 0),
    ).where(budgets.c.tenant == bindparam("whose"))
)
_NONE = {"used_tokens": 0, "used_micros": 0, "reserved_tokens": 0, "reserved_micros": 0}
_TURN = (
    update(budgets)
    .where(budgets.c.tenant == bindparam("whose"))
    .values(period_begin=bindparam("begin"), reserved_tags=None, **_NONE)
)
_MOVE = PreparedStatement(
    update(reservations)
    .where(literal_column("rowid") == bindparam("number"))
    .values(period_begin=bindparam("begin"), seal=bindparam("seal"))
)


def advance_period(connection: Connection, tenant: str, at: int) -> tuple[int, int]:
    """Advance a budget to the period of a time, if that is a later one.

    A clock that is set back does not start an earlier period again.

    Returns:
        Begin of the budget's period, and of the time's. Without a budget, two unequal numbers.
    """
    found = _BUDGET.run(connection, whose=tenant).fetchone()
    if found is None:
        return 0, -1
    period, current_begin = found
    begin = begin_of(period, at)
    # The common case, without a write.
    if begin <= current_begin:
        return current_begin, begin
    connection.execute(_TURN, {"whose": tenant, "begin": begin})
    return begin, begin


def period_of(connection: Connection, tenant: str) -> int | None:
    """Begin of the budget's present period; None if there is no budget."""
    found = _BUDGET.run(connection, whose=tenant).fetchone()
    return None if found is None else int(found[1])


def reserved(connection: Connection, tenant: str) -> Amounts:
    """The reserved amounts in a budget's row."""
    found = _RESERVED.run(connection, whose=tenant).fetchone()
    return Amounts() if found is None else Amounts(*found)


def change_period(
    connection: Connection, secret: ServerSecret, tenant: str, period: str | None, now: int
) -> None:
    """Change the kind of period: usage and reservations since its begin are what counts.

    Reserved amounts that no row with a valid seal accounts for belong to edited rows: they stay.
    """
    begin = begin_of(period, now)
    since = (usage.c.tenant == tenant) & (usage.c.created_at >= begin)
    tokens = usage.c.prompt_tokens + usage.c.completion_tokens
    # Summed up from rows, since the sums in the budget are of the former period.
    used = connection.execute(
        select(func.coalesce(func.sum(tokens), 0), func.coalesce(func.sum(usage.c.micros), 0))
        .select_from(usage)
        .where(since)
    ).one()
    rows = reservation_seals.read(connection, secret, tenant)
    held = [(row, row.entry) for row in rows if row.entry is not None]
    before = period_of(connection, tenant)
    known = [entry for row, entry in held if row.period_begin == before]
    more = reserved(connection, tenant).less(reservation_seals.sum_of(secret, known))
    for row, entry in held:
        # Those from before the new period count nowhere any more: no period begins at -1.
        its = begin if entry.created_at >= begin else -1
        seal = reservation_seals.seal_of(secret, entry, its)
        _MOVE.run(connection, number=row.number, begin=its, seal=seal)
    current = [entry for _, entry in held if entry.created_at >= begin]
    found = reservation_seals.sum_of(secret, current)
    amounts = {
        "used_tokens": used[0],
        "used_micros": used[1],
        "reserved_tokens": max(0, found.tokens + more.tokens),
        "reserved_micros": max(0, found.micros + more.micros),
        "reserved_tags": found.tags + more.tags or None,
    }
    connection.execute(
        update(budgets)
        .where(budgets.c.tenant == tenant)
        .values(budget_period=period, period_begin=begin, **amounts)
    )


def current(row: Row[Any], now: float) -> dict[str, Any]:
    """A budget's row as of a time: amounts are 0 once its period is over."""
    values = dict(row._mapping)
    begin = begin_of(row.budget_period, now)
    return values | {"period_begin": begin, **_NONE} if begin > row.period_begin else values
