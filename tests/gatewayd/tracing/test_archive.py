"""Trace archive: time of ended requests is found in the store within its retention."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from gatewayd.daemon.resources import PersistentResources
from gatewayd.tracing.archive import AT_ONCE, REFUSED_AT_ONCE
from gatewayd.tracing.explanation import explanation
from gatewayd.tracing.latency_record import LatencyRecord
from gatewayd.tracing.recent import RecentLatencyRecords
from tests.gatewayd.admin.test_explain import get
from tests.gatewayd.store_fixtures import opened
from tests.gatewayd.tracing.test_latency_record import latency_record


def of(number: int, *, answered: str = "", unix: float | None = None) -> LatencyRecord:
    at = time.time() if unix is None else unix
    name = f"req_{number}"
    return msgspec.structs.replace(
        latency_record(),
        request_id=name,
        answered_id=answered or name,
        unix=at,
        prompt_tokens=number,
    )


async def written(durable: PersistentResources) -> None:
    """Write, and wait until a later write has been made."""
    durable.archive.flush()
    await durable.database.write(lambda connection: None)


async def test_what_ended_in_another_life_is_explained(tmp_path: Path) -> None:
    ended = [of(1), of(2, answered="mine"), of(3, answered="mine")]
    with opened(tmp_path) as durable:
        recent = RecentLatencyRecords(keep=durable.archive.add)
        for one in ended:
            recent.add(one)
    with opened(tmp_path) as durable:
        archive = durable.archive
        assert await archive.find("req_1") == explanation(ended[0])
        assert await archive.find("req_2") == explanation(ended[1])
        assert await archive.find("mine") == explanation(ended[2])
        assert await archive.find("yours") is None
        status, told = await get(RecentLatencyRecords(), "/admin/requests/mine", archive=archive)
        assert (status, told) == (200, msgspec.to_builtins(explanation(ended[2])))
        status, told = await get(RecentLatencyRecords(), "/admin/requests/yours", archive=archive)
        assert status == 404


async def test_the_model_is_stored_and_rows_of_earlier_versions_have_none(tmp_path: Path) -> None:
    with opened(tmp_path) as durable:
        durable.archive.add(msgspec.structs.replace(of(1), model="chat"))
        durable.archive.add(msgspec.structs.replace(of(2), model="code"))
    with sqlite3.connect(tmp_path / "gatewayd.db") as connection:
        remove = (
            "UPDATE ledgers SET explanation = CAST(json_remove(explanation, '$.model') AS BLOB)"
        )
        connection.execute(f"{remove} WHERE request_id = 'req_2'")
    connection.close()
    with opened(tmp_path) as durable:
        first, second = [await durable.archive.find(name) for name in ("req_1", "req_2")]
    assert first is not None
    assert second is not None
    assert (first.model, second.model) == ("chat", "")


async def test_a_daemon_writes_once_a_second(tmp_path: Path) -> None:
    with opened(tmp_path) as durable:
        task = asyncio.create_task(durable.archive.run())
        durable.archive.add(of(1))
        for _ in range(40):
            if found := await durable.archive.find("req_1"):
                break
            await asyncio.sleep(0.1)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert found


async def test_too_many_at_once_are_counted_and_not_written(tmp_path: Path) -> None:
    with opened(tmp_path) as durable:
        for number in range(AT_ONCE + 7):
            durable.archive.add(of(number))
        assert durable.archive.dropped == 7
        await written(durable)
        assert await durable.archive.find(f"req_{AT_ONCE - 1}")
        assert await durable.archive.find(f"req_{AT_ONCE}") is None
        durable.archive.add(of(AT_ONCE))
        await written(durable)
        assert await durable.archive.find(f"req_{AT_ONCE}")


@pytest.mark.parametrize("rows", [1, 3, 50])
async def test_what_is_old_or_too_much_goes(tmp_path: Path, rows: int) -> None:
    now, day = time.time(), 86_400
    ages = [9.0, 1.0, 8.0, 3.0, 0.0, 2.5]
    with opened(tmp_path, store={"ledger_days": 2.75, "ledger_rows": rows}) as durable:
        for number, age in enumerate(ages):
            durable.archive.add(of(number, unix=now - age * day))
        await written(durable)
        await durable.archive.prune()
        kept = [n for n in range(6) if await durable.archive.find(f"req_{n}")]
    newest = range(6 - min(rows, 6), 6)
    assert kept == [n for n in newest if ages[n] < 2.75]


async def test_a_flood_of_refusals_pushes_out_no_others_and_has_its_own_room(
    tmp_path: Path,
) -> None:
    with opened(tmp_path, store={"ledger_rows": 10}) as durable:
        archive = durable.archive
        recent = RecentLatencyRecords(keep=archive.add, keep_refused=archive.refuse)
        for number in range(12):
            recent.add(of(number))
        for number in range(100, 100 + REFUSED_AT_ONCE + 5):
            recent.refuse(of(number, answered="mine"))
        assert archive.dropped == 5
        await written(durable)
        await archive.prune()
        kept = [n for n in range(200) if await archive.find(f"req_{n}")]
        last = 100 + REFUSED_AT_ONCE
        assert kept == [*range(4, 12), last - 2, last - 1]
        found = await archive.find("mine")
        assert found is not None
        assert found.request_id == f"req_{last - 1}"


@pytest.mark.parametrize("is_refused_later", [False, True])
async def test_of_two_with_one_id_the_later_is_found(
    tmp_path: Path, is_refused_later: bool
) -> None:
    served, refused = of(1, answered="mine", unix=50.0), of(2, answered="mine", unix=50.0)
    if is_refused_later:
        refused = of(2, answered="mine", unix=60.0)
    else:
        served = of(1, answered="mine", unix=60.0)
    with opened(tmp_path) as durable:
        durable.archive.add(served)
        durable.archive.refuse(refused)
        await written(durable)
        expected = refused if is_refused_later else served
        assert await durable.archive.find("mine") == explanation(expected)


async def test_none_are_kept_where_none_are_wanted(tmp_path: Path) -> None:
    with opened(tmp_path, store={"ledger_days": 0}) as durable:
        durable.archive.add(of(1))
    with sqlite3.connect(tmp_path / "gatewayd.db") as connection:
        assert cast(Any, connection.execute("SELECT count(*) FROM ledgers").fetchone()) == (0,)
    connection.close()
