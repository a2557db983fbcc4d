"""SQL of the budget ledger: reserve and settle, each in one transaction.

Invariant at every commit, for each tenant: ``used`` of its budget is the sum of its usage rows,
``reserved`` the sum of its reservations, both counting only requests of the budget's period; and
their sum is within the budget unless an operator has lowered it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    Connection,
    Integer,
    LargeBinary,
    Row,
    bindparam,
    cast,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from gatewayd.errors import InsufficientQuota
from gatewayd.store.ids import new_id
from gatewayd.store.prepared import PreparedStatement
from gatewayd.store.tables import budgets, reservations, usage
from gatewayd.tenants.billing.budget_periods import advance_period, period_of
from gatewayd.tenants.billing.costs import LedgerEntry, RequestedCost, Settlement, Spent
from gatewayd.tenants.billing.periods import end_of
from gatewayd.tenants.billing.prices import FREE
from gatewayd.tenants.tamper_evidence import reservation_seals
from gatewayd.tenants.tamper_evidence.secret import ServerSecret

# Check and reservation in one statement: no row is changed if the budget is too small.
_RESERVE = PreparedStatement(
    update(budgets)
    .where(
        budgets.c.tenant == bindparam("whose"),
        or_(
            budgets.c.most_tokens.is_(None),
            budgets.c.used_tokens + budgets.c.reserved_tokens + bindparam("tokens")
            <= budgets.c.most_tokens,
        ),
        or_(
            budgets.c.most_micros.is_(None),
            budgets.c.used_micros + budgets.c.reserved_micros + bindparam("micros")
            <= budgets.c.most_micros,
        ),
    )
    .values(
        reserved_tokens=budgets.c.reserved_tokens + bindparam("tokens"),
        reserved_micros=budgets.c.reserved_micros + bindparam("micros"),
        reserved_tags=func.coalesce(budgets.c.reserved_tags, 0) + bindparam("tag"),
    )
)
# One parameter for any number of ids, so that the statement is compiled once.
_AMONG = select(func.json_each(bindparam("ids")).table_valued("value").c.value)
_RELEASE = PreparedStatement(
    delete(reservations)
    .where(reservations.c.id.in_(_AMONG))
    # Cast to the written types: edited rows may hold bytes that are not valid text.
    .returning(
        reservations.c.id,
        cast(reservations.c.period_begin, Integer),
        cast(reservations.c.seal, LargeBinary),
    )
)
_SETTLED = PreparedStatement(select(usage.c.id).where(usage.c.id.in_(_AMONG)))
_MOVE = PreparedStatement(
    update(budgets)
    .where(budgets.c.tenant == bindparam("whose"))
    .values(
        used_tokens=budgets.c.used_tokens + bindparam("tokens"),
        used_micros=budgets.c.used_micros + bindparam("micros"),
        # Never below 0, or rows edited in the database could enlarge a budget.
        reserved_tokens=func.max(0, budgets.c.reserved_tokens - bindparam("released_tokens")),
        reserved_micros=func.max(0, budgets.c.reserved_micros - bindparam("released_micros")),
        # NULL, as initially, while nothing is reserved.
        reserved_tags=func.nullif(
            func.coalesce(budgets.c.reserved_tags, 0) - bindparam("released_tags"), 0
        ),
    )
)
_OF_A_REQUEST = ("request_id", "tenant", "key_id", "endpoint", "model", "created_at")
_PRICES = ("input_price", "cached_price", "output_price")


def _given(*names: str) -> dict[str, Any]:
    return {name: bindparam(name) for name in names}


_HOLD = PreparedStatement(
    insert(reservations).values(
        _given(
            *("id", *_OF_A_REQUEST, "prompt_tokens"),
            *("tokens", "micros", *_PRICES, "period_begin", "seal"),
        )
    )
)
_USE = PreparedStatement(
    insert(usage).values(_given("id", *_OF_A_REQUEST, "micros", *Spent._fields))
)


def reserve(
    connection: Connection, entries: Sequence[LedgerEntry], secret: ServerSecret
) -> list[InsufficientQuota | None]:
    """Reserve each request's maximum cost in its tenant's budget, in the given order.

    Returns:
        For each request its refusal, or None if it was reserved.
    """
    refused: dict[str, InsufficientQuota] = {}
    held: list[dict[str, object]] = []
    begins: dict[str, tuple[int, int]] = {}  # by tenant: time of its last entry, period begin
    for entry in entries:
        asked, price = entry.asked, entry.price
        at, begin = begins.get(asked.tenant, (None, 0))
        # Read again for any other second, also an earlier one: the clock may be set.
        if at != entry.created_at:
            begin, _ = advance_period(connection, asked.tenant, entry.created_at)
            begins[asked.tenant] = entry.created_at, begin
        amount = {"tokens": asked.tokens, "micros": entry.micros}
        tag = reservation_seals.tag_of(secret, entry.id)
        # A refusal does not end the batch: later requests may still fit.
        if _RESERVE.run(connection, whose=asked.tenant, tag=tag, **amount).rowcount != 1:
            refused[entry.id] = _refusal(connection, entry)
            continue
        row = {
            "id": entry.id,
            **_of_a_request(entry),
            "prompt_tokens": asked.prompt_tokens,
            **amount,
            "input_price": price.input,
            "cached_price": price.cached,
            "output_price": price.output,
            "period_begin": begin,
        }
        row["seal"] = reservation_seals.seal_of_row(secret, row)
        held.append(row)
    _HOLD.run_for_all(connection, held)
    return [refused.get(entry.id) for entry in entries]


@dataclass(slots=True)
class _BudgetChange:
    """Changes of the amounts of one budget."""

    tokens: int = 0
    micros: int = 0
    released_tokens: int = 0
    released_micros: int = 0
    released_tags: int = 0

    def apply(self, connection: Connection, tenant: str) -> None:
        """Apply the changes to a tenant's budget."""
        _MOVE.run(
            connection,
            whose=tenant,
            tokens=self.tokens,
            micros=self.micros,
            released_tokens=self.released_tokens,
            released_micros=self.released_micros,
            released_tags=self.released_tags,
        )


def charge(
    connection: Connection, tenant: str, amounts: reservation_seals.Amounts, at: int
) -> None:
    """Charge a budget for reserved amounts that no valid reservation accounts for.

    Args:
        connection: to write with.
        tenant: tenant of the budget.
        amounts: to move from reserved to used.
        at: Unix time of the usage row.
    """
    moved = _BudgetChange()
    # Moved from reserved to used: their sum, and what is left of the budget, stay the same.
    moved.tokens = moved.released_tokens = amounts.tokens
    moved.micros = moved.released_micros = amounts.micros
    moved.released_tags = amounts.tags
    moved.apply(connection, tenant)
    unknown = RequestedCost("unknown", tenant, None, "unknown", "unknown", amounts.tokens, 0)
    entry = LedgerEntry(new_id("use_"), unknown, FREE, at, True)
    spent = Spent("lost", amounts.tokens, 0, 0)
    row = {"id": entry.id, "micros": amounts.micros, **_of_a_request(entry), **spent._asdict()}
    _USE.run(connection, **row)


def settle(connection: Connection, settlements: Sequence[Settlement], secret: ServerSecret) -> None:
    """Record usage and release reservations; idempotent.

    A request that ran and whose reservation is missing, deleted by another program, is charged
    nevertheless.
    """
    ids = {"ids": json.dumps([settlement.entry.id for settlement in settlements])}
    released = {row[0]: row[1:] for row in _RELEASE.run(connection, **ids).fetchall()}
    settled = {found for (found,) in _SETTLED.run(connection, **ids)}
    rows: list[dict[str, object]] = []
    moves: dict[tuple[str, int], _BudgetChange] = defaultdict(_BudgetChange)  # by tenant and period
    for entry, spent in settlements:
        row = released.pop(entry.id, None)
        # Settled before, by a retry of a write whose outcome was unknown; or never written.
        if entry.id in settled or (row is None and spent is None):
            continue
        # If these have an entry twice the first one counts.
        settled.add(entry.id)
        tenant = entry.asked.tenant
        # By period, too: an entry may begin the next period amid the others.
        move = moves[tenant, _period_of(connection, entry, row, secret)]
        if entry.is_reserved:
            # The amounts that were reserved, whatever its row says now.
            move.released_tokens += entry.asked.tokens
            move.released_micros += entry.micros
            move.released_tags += reservation_seals.tag_of(secret, entry.id)
        if spent is not None:
            micros = entry.price.cost(
                spent.prompt_tokens, spent.cached_tokens, spent.completion_tokens
            )
            move.tokens += spent.tokens
            move.micros += micros
            rows.append(
                {"id": entry.id, "micros": micros, **_of_a_request(entry), **spent._asdict()}
            )
    _USE.run_for_all(connection, rows)
    for (tenant, begin), move in moves.items():
        if begin != period_of(connection, tenant):
            continue  # the period is over, perhaps since an entry above: nothing of it counts
        move.apply(connection, tenant)


def _period_of(
    connection: Connection,
    entry: LedgerEntry,
    row: tuple[object, object] | None,
    secret: ServerSecret,
) -> int:
    """Begin of the budget period that a request counts in; -1 for none."""
    tenant = entry.asked.tenant
    if not entry.is_reserved:
        return advance_period(connection, tenant, entry.created_at)[1]
    begin = period_of(connection, tenant)
    if begin is None:
        return -1
    if entry.created_at >= begin:
        return begin
    # It started after the clock was set back: its row has the period, unless it was edited.
    is_known = (
        row is not None and row[0] == begin and reservation_seals.is_sealed(secret, entry, *row)
    )
    return begin if is_known else -1


def with_usage(connection: Connection, ids: Sequence[str]) -> set[str]:
    """The subset of these reservations that already have usage."""
    return {found for (found,) in _SETTLED.run(connection, ids=json.dumps(ids))}


def remove_older(connection: Connection, created_at: float, most: int) -> int:
    """Delete at most ``most`` older usage rows; budgets keep their sums."""
    old: Sequence[str] = (
        connection.execute(select(usage.c.id).where(usage.c.created_at < created_at).limit(most))
        .scalars()
        .all()
    )
    connection.execute(delete(usage).where(usage.c.id.in_(old)))
    return len(old)


def _of_a_request(entry: LedgerEntry) -> dict[str, object]:
    asked = entry.asked
    return {
        "request_id": asked.request_id,
        "tenant": asked.tenant,
        "key_id": asked.key_id,
        "endpoint": asked.endpoint,
        "model": asked.model,
        "created_at": entry.created_at,
    }


def _refusal(connection: Connection, entry: LedgerEntry) -> InsufficientQuota:
    """Build the refusal: what remains, what is needed, and when more becomes available."""
    refusal, row = _reasoned(connection, entry)
    left: list[int] = []
    # Reserved amounts count as used: what is offered must be admitted now.
    if row.most_tokens is not None:
        left.append(row.most_tokens - row.used_tokens - row.reserved_tokens)
    if row.most_micros is not None:
        money = row.most_micros - row.used_micros - row.reserved_micros
        left.append(
            entry.price.num_affordable(money, entry.asked.prompt_tokens, entry.asked.tokens)
        )
    offers = [entry.asked.shorter(min(left))]
    if row.budget_period is not None:
        is_enough = row.most_tokens is None or entry.asked.tokens <= row.most_tokens
        # A new period helps only a request that fits into an empty budget.
        if is_enough and (row.most_micros is None or entry.micros <= row.most_micros):
            seconds = end_of(row.budget_period, entry.created_at) - entry.created_at
            offers.append({"after_seconds": seconds})
    refusal.offers = [offer for offer in offers if offer is not None]
    return refusal


def _reasoned(connection: Connection, entry: LedgerEntry) -> tuple[InsufficientQuota, Row[Any]]:
    asked = entry.asked
    row = connection.execute(select(budgets).where(budgets.c.tenant == asked.tenant)).one()
    for what, most, used, wanted in (
        ("tokens", row.most_tokens, row.used_tokens, asked.tokens),
        ("millionths", row.most_micros, row.used_micros, entry.micros),
    ):
        # Reservations do not count: what they alone prevent may fit once they settle.
        if most is not None and used + wanted > most:
            again = ""
            if row.budget_period is not None and wanted <= most:
                at = datetime.fromtimestamp(end_of(row.budget_period, entry.created_at), UTC)
                again = f", or wait until {at:%Y-%m-%dT%H:%M:%SZ}"
            refusal = InsufficientQuota(
                f"the budget of tenant {asked.tenant} has {max(0, most - used)} {what} left and "
                f"this request may take {wanted}: ask for fewer tokens, or the operator for "
                f"more{again}"
            )
            return refusal, row
    refusal = InsufficientQuota(
        f"running requests have reserved the rest of the budget of tenant {asked.tenant}; "
        "try again",
        retry_after=1.0,
    )
    return refusal, row
