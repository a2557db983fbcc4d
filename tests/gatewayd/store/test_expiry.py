"""Expiry: what is deleted and when, under a jumping clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, select

from gatewayd.resources import expiry
from gatewayd.resources.expiry import Expiry
from gatewayd.resources.files.content_store import ContentStore
from gatewayd.store.clock import StoreClock
from gatewayd.store.database import Database, connect
from gatewayd.store.schema import upgrade_schema
from gatewayd.store.tables import batch_results, batches, files, kept, responses
from tests.gatewayd.store.test_clock import DAY, START, YEAR, Hands


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    engine = connect(tmp_path / "gatewayd.db")
    upgrade_schema(engine, tmp_path / "gatewayd.db")
    opened = Database(engine)
    yield opened
    opened.close()


@pytest.fixture
def vault(tmp_path: Path) -> ContentStore:
    return ContentStore(tmp_path / "files")


async def add_files(database: Database, vault: ContentStore, **expires_at: float) -> None:
    for name in expires_at:
        vault.path(name).write_bytes(b"x")

    def work(connection: Connection) -> None:
        common = {"bytes": 1, "filename": "f", "purpose": "batch"}
        for name, when in expires_at.items():
            row = {"id": name, "created_at": int(when - DAY), "expires_at": int(when), **common}
            connection.execute(insert(files).values(row))

    await database.write(work)


async def add_responses(database: Database, **created_at: float) -> None:
    def work(connection: Connection) -> None:
        for name, when in created_at.items():
            row = {"id": name, "created_at": int(when), "body": {}, "input": []}
            connection.execute(insert(responses).values(status="completed", **row))

    await database.write(work)


async def left(database: Database) -> set[str]:
    def read(connection: Connection) -> set[str]:
        both = (select(files.c.id), select(responses.c.id))
        return {name for query in both for name in connection.execute(query).scalars()}

    return await database.read(read)


async def test_a_year_ahead_and_back_deletes_nothing(
    database: Database, vault: ContentStore
) -> None:
    hands = Hands()
    sweeper = Expiry(database, vault, hands.clock(), 30 * DAY, 30 * DAY)
    await add_files(database, vault, file=START + DAY)
    await add_responses(database, response=START)
    hands.wall += YEAR
    for _ in range(10):
        hands.pass_by(60)
        await sweeper.sweep()
    assert await left(database) == {"file", "response"}
    hands.wall -= YEAR
    await sweeper.sweep()
    assert await left(database) == {"file", "response"}
    hands.pass_by(DAY)
    await sweeper.sweep()
    assert await left(database) == {"response"}
    assert not vault.path("file").exists()


async def test_a_year_that_is_really_over_deletes_after_an_hour(
    database: Database, vault: ContentStore
) -> None:
    hands = Hands()
    hands.wall += YEAR
    sweeper = Expiry(database, vault, hands.clock(last=START), 30 * DAY, 30 * DAY)
    await add_files(database, vault, file=START + DAY)
    await sweeper.sweep()
    assert await left(database) == {"file"}
    hands.pass_by(3600)
    await sweeper.sweep()
    assert await left(database) == set()


async def test_what_was_made_by_a_clock_ahead_is_not_kept_a_year_longer(
    database: Database, vault: ContentStore
) -> None:
    hands = Hands()
    sweeper = Expiry(database, vault, hands.clock(), 30 * DAY, 30 * DAY)
    await add_files(database, vault, file=START + YEAR + DAY, soon=START + DAY)
    await add_responses(database, response=START + YEAR)
    await sweeper.sweep()
    hands.pass_by(DAY)
    await sweeper.sweep()
    assert await left(database) == {"response"}
    hands.pass_by(30 * DAY)
    await sweeper.sweep()
    assert await left(database) == set()


async def test_many_go_in_several_transactions(
    database: Database, vault: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "AT_ONCE", 10)
    now = time.time()
    await add_files(database, vault, **{f"file-{n}": now - n for n in range(25)}, kept=now + DAY)
    old = {f"old-{n}": now - 40 * DAY + n // 7 for n in range(35)}
    await add_responses(database, **old, young=now - 29 * DAY)
    sweeper = Expiry(database, vault, StoreClock(None), 30 * DAY, 30 * DAY)
    transactions: list[int] = []
    delete = sweeper._delete

    def counted(connection: Connection) -> expiry.ExpiredObjects:
        gone = delete(connection)
        transactions.append(max(len(gone.files), gone.responses))
        return gone

    monkeypatch.setattr(sweeper, "_delete", counted)
    await sweeper.sweep()
    assert await left(database) == {"kept", "young"}
    assert len(transactions) >= 3
    assert max(transactions) < 20


async def test_batches_go_so_long_after_their_end_and_take_their_results_along(
    database: Database, vault: ContentStore
) -> None:
    now = int(time.time())

    def fill(connection: Connection) -> None:
        common = {"endpoint": "/v1/x", "input_file_id": "f", "completion_window": "24h"}
        for name, age, end in (
            ("failed", 40, {"status": "failed", "failed_at": now - 31 * DAY}),
            ("ended-late", 40, {"status": "completed", "completed_at": now - 29 * DAY}),
            ("runs", 40, {"status": "in_progress"}),
            ("young", 1, {"status": "cancelled", "cancelled_at": now}),
        ):
            began = int(now - age * DAY)
            row = {"id": f"batch_{began * 10**9:016x}{name}", "created_at": began, "expires_at": 0}
            connection.execute(insert(batches).values({**common, **row, **end}))
            tokens = dict.fromkeys(("input", "cached", "output", "reasoning"), 0)
            counts = {f"{name}_tokens": count for name, count in tokens.items()}
            result = {"batch_id": row["id"], "line": 1, "is_ok": True, "output": b"x", **counts}
            connection.execute(insert(batch_results).values(result))

    def names(connection: Connection) -> tuple[set[str], set[str], int]:
        ids = (select(batches.c.id), select(batch_results.c.batch_id))
        left, results = ({name[22:] for name in connection.execute(q).scalars()} for q in ids)
        return left, results, connection.execute(select(kept.c.batches)).scalar_one()

    await database.write(fill)
    *_, before = await database.read(names)
    await Expiry(database, vault, StoreClock(None), 30 * DAY, 30 * DAY).sweep()
    left, results, after = await database.read(names)
    assert left == results == {"ended-late", "runs", "young"}
    assert after * 4 == before * 3
