"""Usage sums: old rows become sums equal to them, so that rows are bounded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, func, insert, select

from gatewayd.store.database import connect
from gatewayd.store.tables import usage
from gatewayd.tenants.billing import (
    budget_ledger_sql as ledger_records,
)
from gatewayd.tenants.billing import (
    budget_periods as turnover,
)
from gatewayd.tenants.billing import (
    usage_sums,
)
from gatewayd.tenants.billing.costs import LedgerEntry, RequestedCost, Settlement, Spent
from gatewayd.tenants.billing.prices import FREE
from gatewayd.tenants.billing.usage import BY, summed
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import says
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import SECRET, check_books, town

HOUR, DAY = 3600, 86_400
NOON = 20_000 * DAY + 12 * HOUR


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


@pytest.fixture
def connection(folder: Path) -> Iterator[Connection]:
    engine = connect(folder / "gatewayd.db")
    with engine.begin() as opened:
        yield opened
    engine.dispose()


def entry(at: int, rng: random.Random) -> dict[str, Any]:
    tenant = rng.choice(["a", "b/", "a_b"])
    return {
        "id": f"use_{at:016x}",
        "request_id": f"req_{at}",
        "tenant": tenant,
        "key_id": rng.choice([None, "k1", "k2"]),
        "endpoint": "/v1/completions",
        "model": rng.choice(["nano", "org/nano"]),
        "created_at": NOON - 3 * DAY + 97 * at,
        **{name: rng.randrange(100) for name in usage_sums._TOKENS},
        "outcome": "stop",
        "micros": rng.randrange(10**6),
        "total_ms": rng.randrange(1000),
        "engine_seconds": rng.randrange(64) / 64,
    }


def sums(connection: Connection, since: int = 0) -> list[list[dict[str, Any]]]:
    return [summed(connection, by=by, since=since) for by in BY]


def count(connection: Connection) -> int:
    found: int = connection.execute(select(func.count()).select_from(usage)).scalar_one()
    return found


@pytest.mark.parametrize("seed", range(3))
def test_every_sum_is_that_of_the_single_rows(connection: Connection, seed: int) -> None:
    rng = random.Random(seed)
    rows = [entry(at, rng) for at in range(1200)]
    connection.execute(insert(usage), rows)
    hours = [0, *(NOON - 3 * DAY + HOUR * at for at in range(60))]
    before = {since: sums(connection, since) for since in hours}
    keep = 300
    while left := usage_sums.num_over(connection, keep):
        usage_sums.aggregate(connection, min(left, rng.randrange(1, 400)))
        assert {since: sums(connection, since) for since in (0, rng.choice(hours))}.items() <= (
            before.items()
        )
    assert {since: sums(connection, since) for since in hours} == before
    ids = set(connection.execute(select(usage.c.id)).scalars())
    assert {row["id"] for row in rows[-keep:]} < ids
    groups = {
        (row["created_at"] // HOUR, row["tenant"], row["key_id"], row["model"])
        for row in rows[:-keep]
    }
    assert len(ids) - keep == len(groups)
    usage_sums.aggregate(connection, 0)
    assert count(connection) == len(ids)


def test_budgets_stay_the_sums_of_their_periods(connection: Connection) -> None:
    for at in range(60):
        asked = RequestedCost(f"req_{at}", "default", None, "/v1/completions", "nano", 5, 5)
        made = LedgerEntry(f"use_{at:016x}", asked, FREE, NOON + 2 * HOUR * at, False)
        ledger_records.settle(connection, [Settlement(made, Spent("stop", 5, 0, at))], SECRET)
    usage_sums.aggregate(connection, 50)
    check_books(connection)
    for period in ("day", "month", None):
        turnover.change_period(connection, SECRET, "default", period, NOON + 2 * HOUR * 59)
        check_books(connection)


async def test_the_sweep_leaves_so_many_rows(text: TextModel, folder: Path) -> None:
    async with town(text, folder, says([300])) as here:
        await here.tenant("a")
        key = await here.key("a")
        ask = {"model": "nano", "prompt": [7], "max_tokens": 1}
        for _ in range(30):
            assert (await here.post("/v1/completions", key, ask)).status_code == 200
        await here.check_books()
        (before,) = await here.act("GET", "/admin/usage")
        await here.durable.tenancy.aggregate_usage(10)
        assert await here.act("GET", "/admin/usage") == [before]
        assert before["requests"] == 30
        assert len(await here.rows(usage)) in (11, 12)  # an hour may have begun meanwhile
        await here.check_books()
