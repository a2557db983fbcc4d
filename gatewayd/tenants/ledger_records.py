"""The ledger's SQL: reserve, settle, recover. What belongs together is one transaction.

At every commit, for each tenant: ``used`` of its budget is the sum of its usage, ``reserved`` that
of its reservations, both of those that came in the budget's period, and both together are within
the budget as long as nobody lowers it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, or_, select, update

from gatewayd.errors import InsufficientQuota
from gatewayd.store.prepared import Prepared
from gatewayd.store.tables import budgets, reservations, usage
from gatewayd.tenants.costs import Asked, Entry, Settlement, Spent
from gatewayd.tenants.marks import Mark
from gatewayd.tenants.periods import end_of
from gatewayd.tenants.prices import Price
from gatewayd.tenants.turnover import period_of, turn

_RESERVE = Prepared(
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
    )
)
_AMONG = select(func.json_each(bindparam("ids")).table_valued("value").c.value)
_RELEASE = Prepared(
    delete(reservations)
    .where(reservations.c.id.in_(_AMONG))
    .returning(reservations.c.id, reservations.c.period_begin)
)
_SETTLED = Prepared(select(usage.c.id).where(usage.c.id.in_(_AMONG)))
_MOVE = Prepared(
    update(budgets)
    .where(budgets.c.tenant == bindparam("whose"))
    .values(
        used_tokens=budgets.c.used_tokens + bindparam("tokens"),
        used_micros=budgets.c.used_micros + bindparam("micros"),
        reserved_tokens=func.max(0, budgets.c.reserved_tokens - bindparam("released_tokens")),
        reserved_micros=func.max(0, budgets.c.reserved_micros - bindparam("released_micros")),
    )
)
_OF_A_REQUEST = ("request_id", "tenant", "key_id", "endpoint", "model", "created_at")
_PRICES = ("input_price", "cached_price", "output_price")


def _given(*names: str) -> dict[str, Any]:
    return {name: bindparam(name) for name in names}


_HOLD = Prepared(
    insert(reservations).values(
        _given("id", *_OF_A_REQUEST, "prompt_tokens", "tokens", "micros", *_PRICES, "period_begin")
    )
)
_USE = Prepared(insert(usage).values(_given("id", *_OF_A_REQUEST, "micros", *Spent._fields)))


def reserve(connection: Connection, entries: Sequence[Entry]) -> list[InsufficientQuota | None]:
    """Take the most that each request may take from its tenant's budget, in their order.

    Returns:
        For each why it was not taken, or None.
    """
    refused: dict[str, InsufficientQuota] = {}
    held: list[dict[str, object]] = []
    begins: dict[str, tuple[int, int]] = {}  # for the time of the tenant's last entry
    for entry in entries:
        asked, price = entry.asked, entry.price
        at, begin = begins.get(asked.tenant, (None, 0))
        if at != entry.created_at:
            begin, _ = turn(connection, asked.tenant, entry.created_at)
            begins[asked.tenant] = entry.created_at, begin
        amount = {"tokens": asked.tokens, "micros": entry.micros}
        if _RESERVE.run(connection, whose=asked.tenant, **amount).rowcount != 1:
            refused[entry.id] = _refusal(connection, entry)
            continue
        held.append(
            {
                "id": entry.id,
                **_of_a_request(entry),
                "prompt_tokens": asked.prompt_tokens,
                **amount,
                "input_price": price.input,
                "cached_price": price.cached,
                "output_price": price.output,
                "period_begin": begin,
            }
        )
    _HOLD.run_for_all(connection, held)
    return [refused.get(entry.id) for entry in entries]


class _Moved:
    """By how much the amounts of one budget change."""

    __slots__ = ("micros", "released_micros", "released_tokens", "tokens")

    def __init__(self) -> None:
        self.tokens = self.micros = self.released_tokens = self.released_micros = 0


def settle(connection: Connection, settlements: Sequence[Settlement]) -> None:
    """Write down what requests took and let go of the rest; once more changes nothing.

    What ran and has no reservation any more, for which somebody else must have deleted it, is
    charged all the same.
    """
    ids = {"ids": json.dumps([settlement.entry.id for settlement in settlements])}
    released = dict(_RELEASE.run(connection, **ids).fetchall())
    settled = {found for (found,) in _SETTLED.run(connection, **ids)}
    rows: list[dict[str, object]] = []
    moves: dict[tuple[str, int], _Moved] = defaultdict(_Moved)  # by tenant and period
    for entry, spent in settlements:
        begin = released.pop(entry.id, None)
        if entry.id in settled or (begin is None and spent is None):
            continue
        settled.add(entry.id)
        tenant = entry.asked.tenant
        if begin is None:
            # Nothing was reserved: it counts in the period in which it came.
            _, begin = turn(connection, tenant, entry.created_at)
        move = moves[tenant, begin]
        if entry.is_reserved:
            # As it was reserved: the row is not sealed, and the budget is.
            move.released_tokens += entry.asked.tokens
            move.released_micros += entry.micros
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
            continue  # it is over, perhaps since an entry above: nothing of it counts
        _MOVE.run(
            connection,
            whose=tenant,
            tokens=move.tokens,
            micros=move.micros,
            released_tokens=move.released_tokens,
            released_micros=move.released_micros,
        )


def lost(connection: Connection, known: Mapping[str, Mark]) -> list[Settlement]:
    """What the dead had reserved, to be settled at what was marked; without a mark at its prompts.

    Args:
        connection: to read with.
        known: how far each had come, by reservation.
    """
    rows = connection.execute(select(reservations)).all()
    settlements = []
    for row in rows:
        asked = Asked(
            row.request_id,
            row.tenant,
            row.key_id,
            row.endpoint,
            row.model,
            row.prompt_tokens,
            row.tokens - row.prompt_tokens,
        )
        price = Price(row.input_price, row.cached_price, row.output_price)
        generated, prompt, cached = known.get(row.id) or Mark(0, row.prompt_tokens, 0)
        if generated and not prompt:  # there is no answer to nothing
            prompt = row.prompt_tokens
        prompt = min(prompt, row.prompt_tokens)
        spent = Spent("lost", prompt, min(cached, prompt), min(generated, asked.most_tokens))
        settlements.append(Settlement(Entry(row.id, asked, price, row.created_at, True), spent))
    return settlements


def remove_older(connection: Connection, created_at: float, most: int) -> int:
    """Delete at most so many rows of usage that are older; budgets keep what they add up to."""
    old: Sequence[str] = (
        connection.execute(select(usage.c.id).where(usage.c.created_at < created_at).limit(most))
        .scalars()
        .all()
    )
    connection.execute(delete(usage).where(usage.c.id.in_(old)))
    return len(old)


def _of_a_request(entry: Entry) -> dict[str, object]:
    asked = entry.asked
    return {
        "request_id": asked.request_id,
        "tenant": asked.tenant,
        "key_id": asked.key_id,
        "endpoint": asked.endpoint,
        "model": asked.model,
        "created_at": entry.created_at,
    }


def _refusal(connection: Connection, entry: Entry) -> InsufficientQuota:
    """Say what is left, what would be taken, and whether it may become more by itself."""
    refusal, row = _reasoned(connection, entry)
    left: list[int] = []
    if row.most_tokens is not None:
        left.append(row.most_tokens - row.used_tokens - row.reserved_tokens)
    if row.most_micros is not None:
        money = row.most_micros - row.used_micros - row.reserved_micros
        left.append(entry.price.affords(money, entry.asked.prompt_tokens, entry.asked.tokens))
    offers = [entry.asked.shorter(min(left))]
    if row.budget_period is not None:
        is_enough = row.most_tokens is None or entry.asked.tokens <= row.most_tokens
        if is_enough and (row.most_micros is None or entry.micros <= row.most_micros):
            seconds = end_of(row.budget_period, entry.created_at) - entry.created_at
            offers.append({"after_seconds": seconds})
    refusal.offers = [offer for offer in offers if offer is not None]
    return refusal


def _reasoned(connection: Connection, entry: Entry) -> tuple[InsufficientQuota, Row[Any]]:
    asked = entry.asked
    row = connection.execute(select(budgets).where(budgets.c.tenant == asked.tenant)).one()
    for what, most, used, wanted in (
        ("tokens", row.most_tokens, row.used_tokens, asked.tokens),
        ("millionths", row.most_micros, row.used_micros, entry.micros),
    ):
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
        f"requests that run hold the rest of the budget of tenant {asked.tenant}; try again",
        retry_after=1.0,
    )
    return refusal, row
