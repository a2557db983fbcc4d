"""Reservation storms: budgets hold and nothing stays reserved under failures and cancellation."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import Connection, select

from gatewayd.errors import InsufficientQuota, StoreUnavailable
from gatewayd.store import retry
from gatewayd.store.tables import budgets, reservations
from gatewayd.tenants.billing import budget_ledger_sql
from gatewayd.tenants.billing.costs import LedgerEntry, RequestedCost, Settlement, Spent
from gatewayd.tenants.billing.prices import FREE
from gatewayd.tenants.tamper_evidence.secret import ServerSecret
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import says
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import Town, town

BAD = "use_bad"
"""With it begins what cannot be reserved, for a reason of its own."""


class Storm:
    """Requests of three tenants, reserved and settled or cancelled."""

    def __init__(self, here: Town, rng: random.Random) -> None:
        self._here, self._rng = here, rng
        self._ledger = here.durable.tenancy.ledger
        self.used = Counter[str]()

    async def request(self, number: int) -> None:
        rng = self._rng
        await asyncio.sleep(rng.uniform(0, 0.1))
        asked = RequestedCost(
            "r", rng.choice("abc"), None, "/", "nano", rng.randint(1, 9), rng.randint(0, 9)
        )
        name = f"{BAD if rng.random() < 0.03 else 'use_'}{number}"
        entry = LedgerEntry(name, asked, FREE, int(time.time()), True)
        try:
            await self._ledger.reserve(entry)
        except (InsufficientQuota, StoreUnavailable, ValueError):
            return
        try:
            await asyncio.sleep(rng.uniform(0, 0.05))
        finally:
            if rng.random() < 0.2:
                self._ledger.withdraw(entry)
            else:
                spent = Spent("stop", asked.prompt_tokens, 0, rng.randint(0, asked.most_tokens))
                self._ledger.settle(entry, spent)
                self.used[asked.tenant] += spent.tokens

    async def watch(self) -> None:
        while True:
            rows = await self._here.durable.database.read(
                lambda c: c.execute(select(budgets)).all()
            )
            for row in rows:
                assert row.used_tokens + row.reserved_tokens <= (row.most_tokens or 0), row
            await asyncio.sleep(0.003)


def full() -> sqlite3.Error:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


@pytest.mark.parametrize(
    "seed", [0, 1, *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40)]]
)
async def test_a_storm_of_reservations(
    text: TextModel, fresh_store: Path, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, reserve, settle = random.Random(seed), budget_ledger_sql.reserve, budget_ledger_sql.settle

    def reserves(
        connection: Connection, entries: Sequence[LedgerEntry], secret: ServerSecret
    ) -> Sequence[Exception | None]:
        told = reserve(connection, entries, secret)
        if any(entry.id.startswith(BAD) for entry in entries):
            raise ValueError("a fault of ours")
        if rng.random() < 0.05:
            raise full()
        return told

    def settles(
        connection: Connection, settlements: Sequence[Settlement], secret: ServerSecret
    ) -> None:
        settle(connection, settlements, secret)
        if rng.random() < 0.1:
            raise full()

    monkeypatch.setattr(retry, "_SECONDS", 0.01)
    store = copy_of(fresh_store, tmp_path / "store")
    async with town(text, store, says([300], reason="length")) as here:
        for tenant in "abc":
            await here.tenant(tenant, most_tokens=rng.choice([50, 500, 5000]))
        monkeypatch.setattr(budget_ledger_sql, "reserve", reserves)
        monkeypatch.setattr(budget_ledger_sql, "settle", settles)
        storm = Storm(here, rng)
        watching = asyncio.create_task(storm.watch())
        tasks = [asyncio.create_task(storm.request(number)) for number in range(400)]
        for _ in range(60):
            await asyncio.sleep(0.003)
            rng.choice(tasks).cancel()
        await asyncio.wait(tasks)
        assert await here.rows(reservations) == []
        await here.check_books()
        for tenant in "abc":
            row = await here.budget(tenant)
            assert (row["used_tokens"], row["reserved_tokens"]) == (storm.used[tenant], 0)
        assert not watching.done(), watching
        watching.cancel()
