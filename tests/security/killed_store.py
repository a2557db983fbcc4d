"""Store whose daemon was killed under load, and the next start's repair."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine

from gatewayd.store.database import connect
from gatewayd.tenants.billing import budget_ledger_sql, crash_marks
from gatewayd.tenants.billing.costs import LedgerEntry, RequestedCost, Settlement, Spent
from gatewayd.tenants.billing.prices import Price
from gatewayd.tenants.tamper_evidence import sealing
from gatewayd.tenants.tamper_evidence.secret import ServerSecret, secret_of
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import check_books, reserve_one
from tests.gatewayd.tenants.test_audit import act
from tests.security.test_seals import rows_of

PRICE = Price(3_000_000, 1_000_000, 5_000_000)
MOST = 10**6


def entry(name: str, tenant: str, prompt: int, most: int, came: int) -> LedgerEntry:
    asked = RequestedCost(f"req_{name}", tenant, "key", "/v1/completions", "m", prompt, most)
    return LedgerEntry(f"use_{name}", asked, PRICE, came, True)


NOW = int(time.time()) + 86_400
"""In a period that no midnight of a long run of tests ends."""
X, Y, Z, OLD = (
    entry("x", "a", 10, 90, NOW),
    entry("y", "a", 5, 40, NOW),
    entry("z", "b", 7, 30, NOW),
    entry("old", "a", 10, 90, NOW),
)
DELIVERED = {X.id: 50, Y.id: 20, Z.id: 8}
EXACT = {one.id: one.asked.prompt_tokens + DELIVERED[one.id] for one in (X, Y, Z)}


SPENT = 10
"""That a had used before, by the request that is over."""


class Killed(NamedTuple):
    """A store whose daemon was killed while X, Y and Z ran, and a row that was over by then."""

    folder: Path
    old: dict[str, Any]

    def seal(self, engine: Engine) -> ServerSecret:
        secret = secret_of(self.folder, {})
        sealing.seal_changes(engine, secret)
        return secret


def kill(fresh: Path, folder: Path) -> Killed:
    """Make one of an empty store."""
    folder = copy_of(fresh, folder)
    for name in ("a", "b", "c"):
        terms = {"most_tokens": MOST, "most_micros": MOST, "budget_period": "day"}
        act(folder, "POST", "/admin/tenants", {"tenant": name, "terms": terms})
    engine = connect(folder / "gatewayd.db")
    secret = Killed(folder, {}).seal(engine)
    with engine.begin() as connection:
        reserve_one(connection, OLD, secret)
    (old,) = rows_of(folder, "reservations")
    with engine.begin() as connection:
        spent = Spent("stop", 10, 0, 0)
        budget_ledger_sql.settle(connection, [Settlement(OLD, spent)], secret)
    kept = crash_marks.Marks(folder / crash_marks.NAME)
    for one in (X, Y, Z):
        with engine.begin() as connection:
            reserve_one(connection, one, secret)
        slot = kept.allocate(one.id)
        assert slot is not None
        kept.write(slot, DELIVERED[one.id], one.asked.prompt_tokens, 0)
    kept.close()
    engine.dispose()
    return Killed(folder, old)


class Start(NamedTuple):
    """What a start made of it."""

    used: dict[str, int]
    usage: dict[str, tuple[str, int, int]]
    faults: list[str]


def state_of(connection: Connection, faults: list[str]) -> Start:
    used = {}
    for row in connection.exec_driver_sql("SELECT * FROM budgets").mappings():
        reserved = row["reserved_tokens"], row["reserved_micros"], row["reserved_tags"]
        assert reserved == (0, 0, None), dict(row)
        used[str(row["tenant"])] = int(row["used_tokens"])
    assert connection.exec_driver_sql("SELECT * FROM reservations").all() == []
    check_books(connection)
    query = "SELECT id, tenant, prompt_tokens + completion_tokens, micros FROM usage"
    usage = {row[0]: (row[1], row[2], row[3]) for row in connection.exec_driver_sql(query)}
    return Start(used, usage, faults)


def state_now(folder: Path) -> Start:
    engine = connect(folder / "gatewayd.db")
    try:
        with engine.connect() as connection:
            return state_of(connection, [])
    finally:
        engine.dispose()


def put(folder: Path, *statements: tuple[str, Sequence[object]]) -> None:
    with contextlib.closing(sqlite3.connect(folder / "gatewayd.db")) as connection, connection:
        for statement, values in statements:
            connection.execute(statement, tuple(values))
