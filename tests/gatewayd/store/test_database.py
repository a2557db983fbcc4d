"""Database: group commits of one writer, threaded readers, readable faults."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, insert, select

from gatewayd.errors import StoreUnavailable
from gatewayd.store.database import Database, connect
from gatewayd.store.errors import StoreError
from gatewayd.store.schema import upgrade_schema
from gatewayd.store.tables import files
from gatewayd_migrations import HEAD


def row(name: str) -> dict[str, object]:
    return {"id": name, "created_at": 1, "bytes": 1, "filename": "f", "purpose": "batch"}


def add(name: str) -> Callable[[Connection], object]:
    return lambda connection: connection.execute(insert(files).values(row(name)))


def ids(connection: Connection) -> set[str]:
    return set(connection.execute(select(files.c.id)).scalars())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gatewayd.db"


@pytest.fixture
def database(file: Path) -> Iterator[Database]:
    engine = connect(file)
    upgrade_schema(engine, file)
    opened = Database(engine)
    yield opened
    opened.close()


async def test_what_was_written_is_read(database: Database) -> None:
    await database.write(add("a"))
    assert await database.read(ids) == {"a"}


async def test_the_event_loop_runs_no_sql(database: Database) -> None:
    mine, seen = threading.get_ident(), set()

    def who(connection: Connection) -> None:
        seen.add(threading.get_ident())

    await asyncio.gather(*[database.write(who) for _ in range(5)], database.read(who))
    assert mine not in seen
    assert len(seen) == 2


async def test_what_waits_is_committed_together(file: Path) -> None:
    engine = connect(file)
    upgrade_schema(engine, file)
    commits: list[Connection] = []
    event.listen(engine, "commit", commits.append)
    database = Database(engine)
    begun, gate = threading.Event(), threading.Event()

    def waits(_: Connection) -> None:
        begun.set()
        assert gate.wait(30)

    first = asyncio.create_task(database.write(waits))
    assert await asyncio.to_thread(begun.wait, 30)
    others = [asyncio.create_task(database.write(add(str(n)))) for n in range(50)]
    await asyncio.sleep(0.05)
    gate.set()
    await asyncio.gather(first, *others)
    assert len(commits) == 2
    assert len(await database.read(ids)) == 50
    database.close()


async def test_one_that_fails_takes_no_other_with_it(database: Database) -> None:
    def fails(connection: Connection) -> None:
        connection.execute(insert(files).values(row("lost")))
        raise LookupError("mine")

    ends = await asyncio.gather(
        database.write(add("a")),
        database.write(fails),
        database.write(add("b")),
        return_exceptions=True,
    )
    assert [type(end) for end in ends][1] is LookupError
    assert await database.read(ids) == {"a", "b"}


async def test_a_full_disk_fails_the_whole_group_and_nothing_is_half_written(
    database: Database,
) -> None:
    def large(connection: Connection) -> None:
        connection.execute(insert(files).values({**row("large"), "filename": "x" * (1 << 20)}))

    def fill(connection: Connection) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 4}")

    await database.write(fill)
    ends = await asyncio.gather(
        database.write(add("a")),
        database.write(large),
        return_exceptions=True,
    )
    failed = [end for end in ends if isinstance(end, StoreUnavailable)]
    assert failed
    assert all("the disk is full" in str(end) for end in failed)
    kept = await database.read(ids)
    assert "large" not in kept
    assert ("a" in kept) == (len(failed) == 1)
    await database.write(add("later"))
    assert "later" in await database.read(ids)


async def test_a_store_that_became_read_only_is_503(database: Database) -> None:
    def freeze(connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA query_only = ON")

    await database.write(freeze)
    with pytest.raises(StoreUnavailable, match="read-only") as caught:
        await database.write(add("a"))
    assert caught.value.status == 503
    assert await database.read(ids) == set()


def test_a_file_that_is_no_database_is_one_sentence(file: Path) -> None:
    file.write_bytes(b"not a database, but long enough to look at " * 40)
    engine = connect(file)
    with pytest.raises(StoreError, match=r"gatewayd\.db cannot be used: its file is no SQLite"):
        upgrade_schema(engine, file)


def test_a_damaged_file_is_one_sentence(file: Path) -> None:
    engine = connect(file)
    upgrade_schema(engine, file)
    engine.dispose()
    content = bytearray(file.read_bytes())
    content[100:4096] = b"\xff" * 3996
    file.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        upgrade_schema(connect(file), file)


def test_a_newer_schema_is_refused_and_named(file: Path) -> None:
    engine = connect(file)
    upgrade_schema(engine, file)
    with sqlite3.connect(file) as other:
        other.execute("UPDATE alembic_version SET version_num = '9999'")
    other.close()
    with pytest.raises(StoreError, match=rf"schema 9999.*newest is {HEAD}"):
        upgrade_schema(engine, file)
    engine.dispose()


KILLED = """
import asyncio, sys
from pathlib import Path
from sqlalchemy import insert
from gatewayd.store.database import Database, connect
from gatewayd.store.schema import upgrade_schema
from gatewayd.store.tables import files

async def main(file):
    engine = connect(file)
    upgrade_schema(engine, file)
    database = Database(engine)
    async def one(n):
        row = {"id": str(n), "created_at": 1, "bytes": 1, "filename": "f", "purpose": "batch"}
        await database.write(lambda c: c.execute(insert(files).values(row)))
        print(n, flush=True)
    for at in range(0, 10**6, 8):
        await asyncio.gather(*[one(n) for n in range(at, at + 8)])

asyncio.run(main(Path(sys.argv[1])))
"""


def test_what_was_promised_survives_a_kill(file: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, file], stdout=subprocess.PIPE)
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(200)]
    os.kill(process.pid, 9)
    told += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    promised = {line.decode().strip() for line in told if line.endswith(b"\n")}
    engine = connect(file)
    upgrade_schema(engine, file)
    with engine.connect() as connection:
        assert promised <= ids(connection)
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
    engine.dispose()
