"""Disk quota: a full store or nearly full disk refuses writes and goes on otherwise."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
from openai.types.responses import Response
from sqlalchemy import Connection

from gatewayd.daemon.resources import PersistentResources
from gatewayd.resources.files.content_store import Draft
from gatewayd.store import tenant_shares
from gatewayd.tenants.principal import OPERATOR
from gatewayd.text.text_model import TextModel
from tests.gatewayd.batch_gateway import create, jsonl, line, until_status
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, Gateway, running, until
from tests.gatewayd.store_fixtures import copy_of, opened

MIB = 1 << 20


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


class Serving(NamedTuple):
    durable: PersistentResources
    gateway: Gateway


@asynccontextmanager
async def serving(text: TextModel, folder: Path, **store: Any) -> AsyncIterator[Serving]:
    with opened(folder, store=store) as durable:
        async with running(text, FakeFleet(says([300, 301])), durable=durable) as gateway:
            yield Serving(durable, gateway)


def disk_with(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    before = os.statvfs

    def statvfs(path: Any) -> os.statvfs_result:
        found = list(before(path))
        found[1], found[4] = 4096, free // 4096  # f_frsize, f_bavail
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", statvfs)


async def upload(gateway: Gateway, size: int) -> str:
    made = await gateway.openai.files.create(file=("f", os.urandom(size)), purpose="user_data")
    return made.id


async def respond(gateway: Gateway, **fields: Any) -> Response:
    made = await gateway.openai.responses.create(model="nano", input="hi", **fields)
    assert isinstance(made, Response)
    return made


def code(error: openai.APIStatusError) -> tuple[int, str | None]:
    return error.status_code, error.code


FULL = (507, "store_full")


async def test_a_file_beyond_the_limit_is_refused_and_leaves_nothing(
    text: TextModel, folder: Path
) -> None:
    async with serving(text, folder, bytes=8 * MIB) as (durable, gateway):
        first = await upload(gateway, 4 * MIB)
        with pytest.raises(openai.InternalServerError, match=r"\[store\] bytes: delete") as caught:
            await upload(gateway, 5 * MIB)
        assert code(caught.value) == FULL
        assert [one.name for one in (folder / "files").iterdir()] == [first]
        assert durable.vault.bytes == 4 * MIB
        await gateway.openai.files.delete(first)
        assert durable.vault.bytes == 0
        await upload(gateway, 5 * MIB)
    with opened(folder) as durable:
        assert durable.vault.bytes == 5 * MIB


async def test_what_is_being_written_counts_before_it_is_on_the_disk(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two uploads are stopped between the check of the room and the write; the third has none."""
    write, go_on, waiting = Draft.write, threading.Event(), []

    def slowly(self: Draft, data: bytes) -> None:
        waiting.append(len(data))
        go_on.wait(30)
        write(self, data)

    monkeypatch.setattr(Draft, "write", slowly)
    async with serving(text, folder) as (durable, gateway):
        two = [asyncio.create_task(upload(gateway, 50_000)) for _ in range(2)]
        await until(lambda: len(waiting) == 2)
        seen = (await durable.room.measure()).total
        assert durable.vault.bytes == 0
        assert durable.room.coming.num_unseen == sum(waiting)
        durable.room.limit = seen + sum(waiting) + 10_000
        with pytest.raises(openai.InternalServerError, match=r"\[store\] bytes: delete") as caught:
            await upload(gateway, 50_000)
        assert code(caught.value) == FULL
        durable.room.limit = 64 * MIB
        go_on.set()
        await asyncio.gather(*two)
        assert durable.vault.bytes == 100_000
        assert durable.room.coming.num_unseen == 0


async def test_the_standing_of_a_tenant_is_one_look_at_all_of_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def counted(connection: Connection, tenant: str, limit: int) -> tenant_shares.TenantStanding:
        looks.append(tenant)
        return tenant_shares.read_standing(connection, tenant, limit)

    monkeypatch.setattr("gatewayd.store.disk_quota.read_standing", counted)
    with opened(folder) as durable:
        told = await durable.room.usage_of(OPERATOR)
    assert len(looks) == 1
    assert (told["files"], told["responses"], told["batches"], told["bytes"]) == (0, 0, 0, 0)


async def test_on_a_disk_with_little_left_the_new_is_refused_and_the_old_goes_on(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = jsonl(
        [
            {**line(str(n)), "url": "/v1/responses", "body": {"model": "nano", "input": "hi"}}
            for n in range(5)
        ]
    )
    async with serving(text, folder, free_bytes="256MiB") as (durable, gateway):
        responses = {"endpoint": "/v1/responses"}
        before = await respond(gateway)
        batch = await create(gateway, lines, **responses)
        disk_with(monkeypatch, 255 * MIB)
        ended = await until_status(gateway, batch, "completed")
        counts = ended.request_counts
        assert counts is not None
        assert (counts.completed, counts.failed) == (5, 0)
        assert batch.input_file_id is not None
        for call in (
            lambda: upload(gateway, 1),
            lambda: gateway.openai.batches.create(
                input_file_id=batch.input_file_id,
                endpoint="/v1/responses",
                completion_window="24h",
            ),
            lambda: respond(gateway),
            lambda: respond(gateway, background=True),
        ):
            with pytest.raises(openai.InternalServerError, match=r"\[store\] free_bytes") as caught:
                await call()
            assert code(caught.value) == FULL
        assert durable.room.refusals == {"bytes": 0, "free_bytes": 4, "store_bytes": 0}
        assert (await respond(gateway, store=False)).output_text
        assert (await gateway.http.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert await gateway.openai.responses.retrieve(before.id) == before
        wrong = await gateway.http.post("/v1/responses", content=b"{", headers=JSON)
        assert wrong.status_code == 400
        disk_with(monkeypatch, 257 * MIB)
        assert (await respond(gateway)).output_text


JSON = {"content-type": "application/json"}
BIG = {f"key-{n}": "x" * 500 for n in range(16)}


async def test_what_is_deleted_in_the_database_makes_room(text: TextModel, folder: Path) -> None:
    async with serving(text, folder) as (durable, gateway):
        before = (await durable.room.measure()).database
        made = [(await respond(gateway, metadata=BIG)).id for _ in range(40)]
        full = (await durable.room.measure()).database
        assert full > before + 40 * 7000
        for response_id in made:
            await gateway.openai.responses.delete(response_id)
        assert (await durable.room.measure()).database < before + 40_000


async def test_a_disk_that_does_not_answer_is_503_and_is_asked_again(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: object) -> os.statvfs_result:
        raise OSError(5, os.strerror(5))

    async with serving(text, folder) as (_, gateway):
        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", broken)
            with pytest.raises(openai.InternalServerError, match="Input/output") as caught:
                await respond(gateway)
        assert code(caught.value) == (503, "store_unavailable")
        await respond(gateway)


async def test_figures_are_those_of_the_files(text: TextModel, folder: Path) -> None:
    async with serving(text, folder, bytes="1GiB") as (durable, gateway):
        await upload(gateway, 5000)
        await durable.room.measure()
        page = (await gateway.http.get("/metrics")).text
    assert 'gatewayd_store_bytes{kind="files"} 5000.0' in page
    assert "gatewayd_store_limit_bytes 1.073741824e+09" in page
    assert 'gatewayd_store_refusals_total{reason="bytes"} 0.0' in page
