"""Reservations: written in groups, each charged by itself."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import Connection

from gatewayd.store.tables import reservations, usage
from gatewayd.tenants.billing import budget_ledger_sql
from gatewayd.tenants.billing.costs import LedgerEntry, RequestedCost
from gatewayd.tenants.billing.prices import FREE
from gatewayd.tenants.tamper_evidence.secret import ServerSecret
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import after, says
from tests.gatewayd.gateway import until
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import town

PATH = "/v1/completions"


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


def ask(num_prompt: int, max_tokens: int) -> dict[str, object]:
    return {"model": "nano", "prompt": [7] * num_prompt, "max_tokens": max_tokens}


async def test_a_request_whose_reservation_is_deleted_is_charged(
    text: TextModel, folder: Path
) -> None:
    go = asyncio.Event()

    script = after(go, says([300] * 4, reason="length"))
    async with town(text, folder, script) as here:
        await here.tenant("a", most_tokens=20)
        asked = asyncio.create_task(here.post(PATH, await here.key("a"), ask(3, 10)))
        await until(lambda: here.gateway.fleet.jobs)
        with sqlite3.connect(folder / "gatewayd.db") as other:
            assert other.execute("DELETE FROM reservations").rowcount == 1
        other.close()
        go.set()
        assert (await asked).status_code == 200
        row = await here.budget("a")
        assert (row["used_tokens"], row["reserved_tokens"]) == (7, 0)
        assert [one["completion_tokens"] for one in await here.rows(usage)] == [4]


async def test_a_reservation_that_cannot_be_written_takes_no_other_with_it(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = budget_ledger_sql.reserve
    sizes: list[int] = []

    def fails(
        connection: Connection, entries: Sequence[LedgerEntry], secret: ServerSecret
    ) -> Sequence[Exception | None]:
        told = reserve(connection, entries, secret)
        sizes.append(len(entries))
        if any(entry.asked.prompt_tokens == 6 for entry in entries):
            raise ValueError("a fault of ours")
        return told

    async with town(text, folder, says([300], reason="length")) as here:
        await here.tenant("a", most_tokens=1000)
        key = await here.key("a")
        monkeypatch.setattr(budget_ledger_sql, "reserve", fails)
        lengths = [3, 4, 6, 5, 3]
        answers = await asyncio.gather(*[here.post(PATH, key, ask(n, 1)) for n in lengths])
        assert [answer.status_code for answer in answers] == [200, 200, 500, 200, 200]
        assert max(sizes) > 1, "they were written together"
        await here.check_books()
        assert (await here.budget("a"))["used_tokens"] == sum(lengths) - 6 + 4


async def test_a_reservation_that_is_cancelled_while_others_fail_is_not_written_afterwards(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, is_writing, go = budget_ledger_sql.reserve, threading.Event(), threading.Event()

    def fails(
        connection: Connection, entries: Sequence[LedgerEntry], secret: ServerSecret
    ) -> Sequence[Exception | None]:
        told = reserve(connection, entries, secret)
        if entries[0].id == "use_bad":
            is_writing.set()
            assert go.wait(30)
            raise ValueError("a fault of ours")
        return told

    async with town(text, folder, says([300], reason="length")) as here:
        await here.tenant("a", most_tokens=1000)
        monkeypatch.setattr(budget_ledger_sql, "reserve", fails)
        ledger, asked = (
            here.durable.tenancy.ledger,
            RequestedCost("r", "a", None, PATH, "nano", 3, 1),
        )
        entries = [
            LedgerEntry(name, asked, FREE, int(time.time()), True)
            for name in ("use_bad", "use_left")
        ]
        tasks = [asyncio.create_task(ledger.reserve(entry)) for entry in entries]
        assert await asyncio.to_thread(is_writing.wait, 10)
        tasks[1].cancel()
        done, _ = await asyncio.wait([tasks[1]])
        assert done.pop().cancelled()
        go.set()
        await asyncio.wait(tasks)
        # The next reservation is written behind whatever is done for these.
        await ledger.reserve(entries[0]._replace(id="use_next"))
        assert [row["id"] for row in await here.rows(reservations)] == ["use_next"]
        await here.check_books()
