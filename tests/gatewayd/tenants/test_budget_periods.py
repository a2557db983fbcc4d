"""Budget periods: days and months, by a manual clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from gatewayd.errors import InsufficientQuota
from gatewayd.store.database import connect
from gatewayd.store.schema import upgrade_schema
from gatewayd.store.tables import budgets
from gatewayd.tenants import records
from gatewayd.tenants.billing import budget_ledger_sql, budget_periods
from gatewayd.tenants.billing.costs import LedgerEntry, RequestedCost, Settlement, Spent
from gatewayd.tenants.billing.periods import begin_of, end_of
from gatewayd.tenants.billing.prices import Price
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import Job, says
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import SECRET, check_books, reserve_one, town

PATH = "/v1/completions"
DAY = 86_400


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("period", "time", "begin", "end"),
    [
        ("day", "2028-02-29T23:59:59", "2028-02-29", "2028-03-01"),
        ("day", "2028-03-01T00:00:00", "2028-03-01", "2028-03-02"),
        ("month", "2028-02-29T23:59:59", "2028-02-01", "2028-03-01"),
        ("month", "2027-12-31T12:00:00", "2027-12-01", "2028-01-01"),
        ("month", "2028-01-01T00:00:00", "2028-01-01", "2028-02-01"),
    ],
)
def test_periods_are_those_of_the_calendar_in_utc(
    period: str, time: str, begin: str, end: str
) -> None:
    assert begin_of(period, at(time) + 0.5) == at(begin)
    assert end_of(period, at(time)) == at(end)
    assert begin_of(None, at(time)) == 0


@pytest.fixture
def connection(fresh_store: Path, tmp_path: Path) -> Iterator[Connection]:
    file = copy_of(fresh_store, tmp_path / "store") / "gatewayd.db"
    engine = connect(file)
    upgrade_schema(engine, file)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def entry(
    number: int, now: int, prompt: int, most: int, *, is_reserved: bool = True
) -> LedgerEntry:
    asked = RequestedCost(f"req_{number}", "a", None, PATH, "nano", prompt, most)
    return LedgerEntry(f"use_{number}", asked, Price(1_000_000, 0, 1_000_000), now, is_reserved)


def budget(connection: Connection) -> Any:
    return connection.execute(select(budgets).where(budgets.c.tenant == "a")).one()


@pytest.mark.parametrize("seed", range(12))
def test_what_counts_is_what_was_reserved_in_the_period(connection: Connection, seed: int) -> None:
    """A list of all requests, of which those of the period are added up anew each time."""
    rng, now, most = random.Random(seed), at("2026-01-30"), 200
    period: str | None = "day"
    records.add_tenant(connection, "a", now, {"most_tokens": most, "budget_period": period})
    begin = begin_of(period, now)
    running: dict[LedgerEntry, int] = {}  # and the period in which each was reserved
    done: list[tuple[int, int]] = []  # when each came, and its tokens
    reset = 0
    for number in range(300):
        now += rng.choice((0, 60, 20_000))
        match rng.choice(("reserve", "reserve", "settle", "settle", "other")):
            case "reserve":
                one = entry(number, now, rng.randint(1, 30), rng.randint(1, 40))
                reset += begin_of(period, now) > begin
                begin = max(begin, begin_of(period, now))
                counted = sum(tokens for came, tokens in done if came >= begin)
                counted += sum(e.asked.tokens for e, of in running.items() if of == begin)
                if counted + one.asked.tokens > most:
                    with pytest.raises(InsufficientQuota):
                        reserve_one(connection, one)
                else:
                    reserve_one(connection, one)
                    running[one] = begin
            case "settle" if running:
                one = rng.choice(list(running))
                asked = one.asked
                used = rng.randint(0, asked.most_tokens)
                spent = Spent("stop", asked.prompt_tokens, 0, used)
                budget_ledger_sql.settle(connection, [Settlement(one, spent)] * 2, SECRET)
                del running[one]
                done.append((one.created_at, spent.tokens))
            case "other" if rng.random() < 0.2:
                period = rng.choice(("day", "month", None))
                records.change_tenant(connection, SECRET, "a", now, {"budget_period": period})
                if budget(connection).period_begin != begin:
                    begin = begin_of(period, now)
                    running = {e: begin if e.created_at >= begin else -1 for e in running}
        row = budget(connection)
        assert row.period_begin == begin
        assert row.used_tokens == sum(tokens for came, tokens in done if came >= begin)
        held = [e.asked.tokens for e, of in running.items() if of == begin]
        assert row.reserved_tokens == sum(held)
        assert row.used_micros == row.used_tokens
    assert reset


def test_a_request_across_midnight_counts_in_the_day_in_which_it_was_reserved(
    connection: Connection,
) -> None:
    before, after = at("2026-03-31T23:59:00"), at("2026-04-01T00:01:00")
    records.add_tenant(connection, "a", before, {"most_tokens": 100, "budget_period": "month"})
    late = entry(1, before, 10, 80)
    reserve_one(connection, late)
    with pytest.raises(InsufficientQuota, match="running requests have reserved the rest"):
        reserve_one(connection, entry(2, before, 10, 10))
    fresh = entry(3, after, 10, 90)
    reserve_one(connection, fresh)
    budget_ledger_sql.settle(connection, [Settlement(late, Spent("stop", 10, 0, 80))], SECRET)
    row = budget(connection)
    assert (row.used_tokens, row.reserved_tokens) == (0, 100)
    budget_ledger_sql.settle(connection, [Settlement(fresh, Spent("stop", 10, 0, 5))], SECRET)
    assert budget(connection).used_tokens == 15
    check_books(connection)
    with pytest.raises(InsufficientQuota, match=r"85 tokens left .* wait until 2026-05-01T00:00"):
        reserve_one(connection, entry(4, after, 10, 90))
    with pytest.raises(InsufficientQuota) as refusal:
        reserve_one(connection, entry(5, after, 10, 91))
    assert "wait" not in str(refusal.value), "it would never fit"


def test_what_was_not_reserved_counts_when_it_came(connection: Connection) -> None:
    records.add_tenant(connection, "a", at("2026-03-01"), {"budget_period": "day"})
    for number, time in enumerate(("2026-03-01", "2026-03-02", "2026-03-01T12:00:00")):
        one = entry(number, at(time), 1, 9, is_reserved=False)
        budget_ledger_sql.settle(
            connection, [Settlement(one, Spent("stop", 1, 0, 10**number))], SECRET
        )
    row = budget(connection)
    assert (row.period_begin, row.used_tokens) == (at("2026-03-02"), 11)


def test_a_clock_that_goes_back_gives_nothing_back(connection: Connection) -> None:
    now = at("2026-03-02T01:00:00")
    records.add_tenant(connection, "a", now, {"most_tokens": 100, "budget_period": "day"})
    reserve_one(connection, entry(1, now, 10, 80))
    with pytest.raises(InsufficientQuota):
        reserve_one(connection, entry(2, now - 5 * DAY, 10, 10))
    assert budget_periods.current(budget(connection), now - DAY)["reserved_tokens"] == 90


@pytest.mark.parametrize("is_reserved", [True, False])
def test_a_period_that_ends_among_settlements_of_one_transaction(
    connection: Connection, *, is_reserved: bool
) -> None:
    before, after = at("2026-03-01T23:59:59"), at("2026-03-02")
    records.add_tenant(connection, "a", before, {"most_tokens": 99, "budget_period": "day"})
    old = entry(1, before, 5, 20, is_reserved=is_reserved)
    if is_reserved:
        reserve_one(connection, old)
    new = entry(2, after, 5, 20, is_reserved=False)
    spent = Spent("stop", 5, 0, 1)
    budget_ledger_sql.settle(connection, [Settlement(old, spent), Settlement(new, spent)], SECRET)
    row = budget(connection)
    assert (row.period_begin, row.used_tokens, row.reserved_tokens) == (after, 6, 0)
    check_books(connection)


def test_a_clock_that_goes_back_among_reservations_of_one_transaction(
    connection: Connection,
) -> None:
    before, after = at("2026-03-01T23:59:59"), at("2026-03-02")
    records.add_tenant(connection, "a", before, {"most_tokens": 99, "budget_period": "day"})
    entries = [entry(number, now, 5, 5) for number, now in enumerate((before, after, before))]
    assert budget_ledger_sql.reserve(connection, entries, SECRET) == [None] * 3
    assert budget(connection).reserved_tokens == 20
    check_books(connection)
    budget_ledger_sql.settle(connection, [Settlement(one, None) for one in entries], SECRET)
    assert budget(connection).reserved_tokens == 0


async def test_the_next_day_there_is_a_budget_again(
    text: TextModel, fresh_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [at("2026-03-02T23:59:50")]
    monkeypatch.setattr("gatewayd.store.clock.StoreClock.now", lambda clock: float(now[0]))
    gate = asyncio.Event()

    async def waits(job: Job) -> None:
        if len(job.request.prompt) == 5:
            await gate.wait()
        await says([300, 301])(job)

    body = {"model": "nano", "prompt": [7, 8, 9], "max_tokens": 7}
    async with town(text, copy_of(fresh_store, tmp_path / "store"), waits) as here:
        await here.tenant("a", most_tokens=20, budget_period="day")
        key = await here.key("a")
        slow = asyncio.create_task(here.post(PATH, key, body | {"prompt": [7, 8, 9, 1, 2]}))
        while not (await here.budget("a"))["reserved_tokens"]:
            await asyncio.sleep(0.01)
        assert (await here.post(PATH, key, body)).status_code == 429
        now[0] += 20
        (shown,) = [one for one in await here.act("GET", "/admin/tenants") if one["tenant"] == "a"]
        assert (shown["reserved_tokens"], shown["budget_period"]) == (0, "day")
        assert (await here.post(PATH, key, body)).status_code == 200
        gate.set()
        assert (await slow).status_code == 200
        row = await here.budget("a")
        assert (row["used_tokens"], row["reserved_tokens"]) == (5, 0)
        await here.check_books()
        await here.act("PATCH", "/admin/tenants/a", {"budget_period": "month"})
        assert (await here.budget("a"))["used_tokens"] == 12
