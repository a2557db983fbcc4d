"""WAL: checkpointed with long and overlapping readers."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert

from gatewayd.store import wal
from gatewayd.store.database import Database, connect
from gatewayd.store.schema import upgrade_schema
from gatewayd.store.tables import files

LIMIT = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gatewayd.db"


@pytest.fixture
def database(file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.setattr(wal, "LIMIT_BYTES", LIMIT)
    monkeypatch.setattr(wal, "_AGAIN_SECONDS", 0.0)
    engine = connect(file)
    upgrade_schema(engine, file)
    opened = Database(engine)
    yield opened
    opened.close()


async def write(database: Database, name: str) -> None:
    """Half a megabyte, more than SQLite itself would let the log have."""

    def work(connection: Connection) -> None:
        row = {"id": name, "created_at": 1, "bytes": 1, "filename": "x" * (1 << 19)}
        connection.execute(insert(files).values(purpose="batch", **row))

    await database.write(work)


async def test_a_long_reader_lets_it_grow_is_told_of_and_then_it_is_cut(
    database: Database, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await write(database, "first")
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM files").fetchone()
        for number in range(6):
            await write(database, str(number))
        assert wal.size_of(file) > 3 * LIMIT
        assert reader.execute("SELECT count(*) FROM files").fetchone() == (1,)
    told = [record for record in caplog.records if "grows" in record.message]
    assert [record.levelno for record in told] == [logging.WARNING]
    for name in ("last", "another", "this one waits for what the last one has cleared"):
        await write(database, name)
    assert wal.size_of(file) < 2 * LIMIT


async def test_readers_that_overlap_do_not_let_it_grow(database: Database, file: Path) -> None:
    await write(database, "first")
    is_over = threading.Event()

    def read(pause: float) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as reader:
            time.sleep(pause)
            while not is_over.is_set():
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM files").fetchone()
                time.sleep(0.02)
                reader.execute("COMMIT")

    threads = [threading.Thread(target=read, args=(n * 0.005,)) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        largest = 0
        for number in range(40):
            await write(database, str(number))
            largest = max(largest, wal.size_of(file))
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert largest < 6 * LIMIT, largest


@pytest.mark.parametrize(
    ("version", "is_told"), [((3, 40, 1), True), ((3, 51, 2), True), ((3, 51, 3), False)]
)
def test_a_build_with_the_bug_is_told_of_and_frightens_nobody(
    version: tuple[int, int, int], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        wal.log_bug(version)
    assert [record.levelno for record in caplog.records] == [logging.INFO] * is_told
    assert ("gatewayd doctor" in caplog.text) is is_told
