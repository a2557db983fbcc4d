"""Tenant shares of the store: bounded, and sums equal the rows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, delete, insert, select, update

from gatewayd.errors import StoreFull
from gatewayd.resources.batches import records as batch_records
from gatewayd.resources.batches.records import LineResult
from gatewayd.resources.files import records as file_records
from gatewayd.resources.files.records import FileRow
from gatewayd.resources.responses import records as response_records
from gatewayd.resources.responses.records import StoredResponse
from gatewayd.store.database import Database, connect
from gatewayd.store.disk_quota import Used
from gatewayd.store.tables import batches, kept, responses, tenants
from gatewayd.store.tenant_shares import FILE_BYTES, IncomingBytes, read_standing
from gatewayd.tenants.principal import Principal
from gatewayd.text.text_model import TextModel
from tests.gatewayd.batch_gateway import CHAT, jsonl, line
from tests.gatewayd.fake_fleet import FakeFleet, Job, Script, hangs, says
from tests.gatewayd.gateway import running
from tests.gatewayd.store.tenant_usage_oracle import counted, recounted
from tests.gatewayd.store_fixtures import copy_of, opened
from tests.gatewayd.tenants.tenant_gateway import Town, bearer
from tests.gatewayd.tenants.test_isolation import batch, over

MIB = 1 << 20
OPERATOR = "operators-key"
ANSWER = says([300, 301])


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


@asynccontextmanager
async def city(
    text: TextModel, folder: Path, script: Script = ANSWER, **store: Any
) -> AsyncIterator[Town]:
    with opened(folder, store=store) as durable:
        fleet = FakeFleet(script)
        async with running(text, fleet, durable=durable, api_key=OPERATOR) as gateway:
            yield Town(gateway, durable)


async def upload(
    here: Town, key: str, content: bytes | int, purpose: str = "user_data"
) -> httpx.Response:
    data = os.urandom(content) if isinstance(content, int) else content
    form = {"files": {"file": ("f", data)}, "data": {"purpose": purpose}}
    return await here.gateway.http.post("/v1/files", headers=bearer(key), **form)  # type: ignore[arg-type]


async def respond(here: Town, key: str, text: str = "hi", **fields: Any) -> httpx.Response:
    body = {"model": "nano", "input": text, "max_output_tokens": 4, **fields}
    return await here.post("/v1/responses", key, body)


async def usage(here: Town, key: str) -> dict[str, Any]:
    answer = await here.gateway.http.get("/v1/gateway/usage", headers=bearer(key))
    found: dict[str, Any] = answer.json()["store"]
    return found


def refusal(answer: httpx.Response) -> str:
    assert answer.status_code == 507, answer.text
    error = answer.json()["error"]
    assert error["code"] == "store_full"
    sentence: str = error["message"]
    return sentence


async def test_who_fills_the_store_leaves_others_their_part(text: TextModel, folder: Path) -> None:
    async with city(text, folder, bytes=16 * MIB) as here:
        await here.tenant("acme")
        await here.tenant("other")
        acme, other = await here.key("acme"), await here.key("other")
        made = []
        while (answer := await upload(here, acme, MIB)).status_code == 200:
            made.append(answer.json()["id"])
        # Three tenants and one that may come: an eighth for each of the others stays free.
        assert len(made) == 9
        sentence = refusal(answer)
        for part in ("tenant acme has 94", "its fair share of [store] bytes: delete files"):
            assert part in sentence
        assert "fair share" in refusal(await respond(here, acme, "x" * MIB))
        assert (await upload(here, other, 2 * MIB - 8192)).status_code == 200
        assert (await respond(here, other)).status_code == 200
        assert (await upload(here, OPERATOR, 2 * MIB)).status_code == 200
        await here.tenant("late")
        assert (await upload(here, await here.key("late"), MIB)).status_code == 200
        assert here.durable.room.refusals["store_bytes"] == 2
        path = f"/v1/files/{made[0]}"
        await here.gateway.http.delete(path, headers=bearer(acme))
        path = f"/v1/files/{made[1]}"
        await here.gateway.http.delete(path, headers=bearer(acme))
        assert (await respond(here, acme)).status_code == 200
    assert counted(folder) == recounted(folder)


async def test_a_tenant_has_the_limit_that_the_operator_set(text: TextModel, folder: Path) -> None:
    async with city(text, folder, bytes="1GiB") as here:
        await here.tenant("acme", store_bytes=100_000)
        key = await here.key("acme")
        assert (await upload(here, key, 90_000)).status_code == 200
        sentence = refusal(await upload(here, key, 20_000))
        assert "it may keep 100000, its store_bytes: delete files or responses" in sentence
        found = await usage(here, key)
        assert found == {
            "files": 90_000 + FILE_BYTES + 1,
            "responses": 0,
            "batches": 0,
            "bytes": 90_000 + FILE_BYTES + 1,
            "limit": 100_000,
        }
        await here.act("PATCH", "/admin/tenants/acme", {"store_bytes": None})
        assert (await upload(here, key, 20_000)).status_code == 200
        # None of a tenant's more than all: a part of a GiB for four, and what is nobody's.
        assert (await usage(here, key))["limit"] > 600 * MIB
        await here.act("PATCH", "/admin/tenants/acme", {"store_bytes": 0})
        refusal(await upload(here, key, 0))
        refusal(await respond(here, key))
        assert (await respond(here, key, store=False)).status_code == 200


async def test_a_limit_of_the_default_tenant_is_the_operators_too(
    text: TextModel, folder: Path
) -> None:
    async with city(text, folder, bytes=8 * MIB) as here:
        for _ in range(7):
            assert (await upload(here, OPERATOR, MIB)).status_code == 200
        assert "[store] bytes: delete" in refusal(await upload(here, OPERATOR, MIB))
        await here.act("PATCH", "/admin/tenants/default", {"store_bytes": MIB})
        assert "its store_bytes" in refusal(await upload(here, OPERATOR, 1))


async def test_files_without_content_are_not_free(text: TextModel, folder: Path) -> None:
    async with city(text, folder, bytes="1GiB") as here:
        await here.tenant("acme", store_bytes=20 * FILE_BYTES)
        key = await here.key("acme")
        answers = [await upload(here, key, 0) for _ in range(25)]
        assert sum(answer.status_code == 200 for answer in answers) == 19


async def test_files_that_come_together_have_one_share(text: TextModel, folder: Path) -> None:
    async with city(text, folder, bytes="1GiB") as here:
        await here.tenant("acme", store_bytes=3 * MIB)
        key = await here.key("acme")
        full, goes_on = asyncio.Event(), asyncio.Event()
        head = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
        head += b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'

        async def body() -> AsyncIterator[bytes]:
            yield head + bytes(5 * MIB // 2)
            full.set()
            await goes_on.wait()
            yield b"\r\n--b--\r\n"

        headers = {**bearer(key), "content-type": "multipart/form-data; boundary=b"}
        slow = asyncio.create_task(
            here.gateway.http.post("/v1/files", content=body(), headers=headers)
        )
        await full.wait()
        async with asyncio.timeout(30):
            while (await usage(here, key))["bytes"] < 2 * MIB:
                await asyncio.sleep(0.01)
        refusal(await upload(here, key, MIB))
        refusal(await respond(here, key, "x" * MIB))
        goes_on.set()
        assert (await slow).status_code == 200
        assert (await upload(here, key, MIB // 3)).status_code == 200
        coming = here.durable.room.coming
        assert (coming.of("acme"), coming.num_unseen) == (0, 0)


@pytest.mark.parametrize("limit", ["store_bytes", "bytes"])
async def test_what_ends_while_somebody_looks_is_counted(
    text: TextModel, folder: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row comes after rows were read, and it comes no more when that is looked at."""
    is_of_tenant = limit == "store_bytes"
    async with city(text, folder, bytes="1GiB" if is_of_tenant else "3MiB") as here:
        await here.tenant("acme", store_bytes=3 * MIB if is_of_tenant else None)
        room, key_id = here.durable.room, "k" if is_of_tenant else None
        measured = room._measured
        row = FileRow("file-1", 1, None, 2 * MIB, "f", "user_data", "acme")
        with room.coming.counted("acme") as hold:
            hold.add(2 * MIB)
            if is_of_tenant:
                hold.mark_written(2 * MIB)

            async def ends_first(pages: int) -> Used:
                monkeypatch.setattr(room, "_measured", measured)  # the daemon looks, too
                await room._database.write(lambda connection: file_records.add(connection, row))
                hold.release()
                return await measured(pages)

            monkeypatch.setattr(room, "_measured", ends_first)
            owner = Principal(tenant="acme", scopes=frozenset(), key_id=key_id)
            said = "its store_bytes" if is_of_tenant else r"\[store\] bytes"
            with pytest.raises(StoreFull, match=said):
                await room.check(owner, MIB + 1)
        assert room.coming.start_sum("acme")() == (0, 0)


async def test_responses_that_run_together_have_one_share(text: TextModel, folder: Path) -> None:
    gate = asyncio.Event()

    async def waits(job: Job) -> None:
        await gate.wait()
        await ANSWER(job)

    async with city(text, folder, waits, bytes="1GiB") as here:
        await here.tenant("acme", store_bytes=5_500)
        key = await here.key("acme")
        running = [asyncio.create_task(respond(here, key, "x " * 900)) for _ in range(8)]
        async with asyncio.timeout(30):
            while sum(task.done() for task in running) < 6:
                await asyncio.sleep(0.01)
        gate.set()
        statuses = sorted(answer.status_code for answer in await asyncio.gather(*running))
        assert statuses == [200, 200] + [507] * 6


async def test_results_of_batches_stop_at_the_share_and_say_so(
    text: TextModel, folder: Path
) -> None:
    async with city(text, folder, says([300] * 400), bytes="1GiB") as here:
        content = jsonl([line(str(at), max_tokens=400) for at in range(96)])
        room = 3 * len(content) + 20_000
        await here.tenant("acme", store_bytes=room)
        await here.tenant("other")
        acme, other = await here.key("acme"), await here.key("other")
        file_id = (await upload(here, acme, content, "batch")).json()["id"]
        ended = await over(here, acme, (await batch(here, acme, file_id))["id"])
        done, failed = (ended["request_counts"][name] for name in ("completed", "failed"))
        assert 32 <= done < 96
        assert done + failed == 96
        path = f"/v1/files/{ended['error_file_id']}/content"
        told = (await here.gateway.http.get(path, headers=bearer(acme))).text.splitlines()
        assert len(told) == failed
        last = json.loads(told[-1])["response"]
        assert (last["status_code"], last["body"]["error"]["code"]) == (507, "store_full")
        theirs = (await upload(here, other, content, "batch")).json()["id"]
        ended = await over(here, other, (await batch(here, other, theirs))["id"])
        assert ended["request_counts"]["completed"] == 96
    assert counted(folder) == recounted(folder)


async def test_open_batches_are_taken_to_need_as_much_as_their_inputs(
    text: TextModel, folder: Path
) -> None:
    async with city(text, folder, hangs, bytes="1GiB") as here:
        content = jsonl([line(str(at)) for at in range(100)])
        await here.tenant("acme", store_bytes=4 * len(content))
        key = await here.key("acme")
        file_id = (await upload(here, key, content, "batch")).json()["id"]
        body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        answers = [await here.post("/v1/batches", key, body) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 507, 507, 507]


async def test_what_is_kept_is_counted_from_life_to_life(text: TextModel, folder: Path) -> None:
    async with city(text, folder) as here:
        await here.tenant("acme")
        key = await here.key("acme")
        for _ in range(3):
            assert (await upload(here, key, 5000)).status_code == 200
            assert (await respond(here, key, "ü" * 500, metadata={"a": "ö"})).status_code == 200
        made = (await respond(here, key, background=True)).json()["id"]
        while (await here.gateway.http.get(f"/v1/responses/{made}", headers=bearer(key))).json()[
            "status"
        ] == "in_progress":
            await asyncio.sleep(0.01)
        before = await usage(here, key)
    assert counted(folder) == recounted(folder)
    async with city(text, folder) as here:
        now = await usage(here, key)
        assert {**now, "limit": 0} == {**before, "limit": 0}
        page = (await here.gateway.http.get("/metrics", headers=bearer(OPERATOR))).text
        await here.durable.room.measure()
        page = (await here.gateway.http.get("/metrics", headers=bearer(OPERATOR))).text
        assert f'gatewayd_store_kept_bytes{{kind="files"}} {float(now["files"])}' in page
        assert f"gatewayd_store_largest_tenant_bytes {float(now['bytes'])}" in page
        await here.act("DELETE", "/admin/tenants/acme")
        # The files go with the next sweep, which may have been: then nothing is counted at all.
        assert counted(folder).get("acme", (0, 0, 0))[1:] == (0, 0)


class Wrong(Exception):
    """What goes wrong in a transaction."""


@pytest.fixture
def database(folder: Path) -> Iterator[Database]:
    opened = Database(connect(folder / "gatewayd.db"))
    yield opened
    opened.close()


@pytest.mark.parametrize("seed", range(2))
async def test_sums_are_those_of_the_rows_whatever_was_done(
    database: Database, folder: Path, seed: int
) -> None:
    rng, names = random.Random(seed), ("a", "b", "default")

    def words(most: int) -> str:
        return "".join(rng.choices('aé€😀"\\\n', k=rng.randrange(most)))

    def anything(connection: Connection, at: int) -> None:
        def some(column: Any) -> str:
            found: str = rng.choice(connection.execute(select(column)).scalars().all() or ["none"])
            return found

        tenant, now = rng.choice(names), 1_000 + at
        match rng.randrange(12):
            case 0 | 1:
                size = rng.randrange(10**6)
                row = FileRow(f"file-{at}", now, now + 50, size, words(40), "batch", tenant)
                file_records.add(connection, row)
            case 2 | 3:
                body = {"id": f"resp_{at}", "created_at": now, "previous_response_id": None}
                body |= {"status": rng.choice(["completed", "in_progress"]), "told": words(2000)}
                response_records.add(connection, tenant, body, [{"text": words(2000)}])
            case 4:
                body = {"id": some(responses.c.id), "status": "completed", "told": words(3000)}
                response_records.replace(connection, StoredResponse(body))
            case 5:
                response_records.remove_older(connection, now - 60)
                file_records.remove_expired(connection, now, 3)
            case 6 | 7:
                values = {"endpoint": "/v1/x", "completion_window": "24h", "created_at": now}
                values |= {"id": f"batch_{at}", "input_file_id": "f", "expires_at": now + 9}
                metadata = rng.choice([None, {"k": words(100)}])
                batch_records.add(connection, {**values, "metadata": metadata, "tenant": tenant})
            case 8 | 9:
                if (owner := some(batches.c.id)) != "none":
                    result = LineResult(owner, rng.randrange(9), True, words(5000).encode())
                    batch_records.record(connection, result)
            case 10:
                errors = rng.choice([None, [{"message": words(100)}]])
                change = update(batches).where(batches.c.id == some(batches.c.id))
                connection.execute(change.values(errors=errors, usage={"n": at}, status="failed"))
            case _:
                connection.execute(delete(batches).where(batches.c.id == some(batches.c.id)))
        if rng.random() < 0.2:
            raise Wrong

    for at in range(200):
        with contextlib.suppress(Wrong):
            await database.write(lambda connection, at=at: anything(connection, at))  # type: ignore[misc]
        if at % 20 == 0:
            assert counted(folder) == recounted(folder, has_contents=False), at
    assert counted(folder) == recounted(folder, has_contents=False)
    assert len(counted(folder)) == 3


@pytest.mark.parametrize("seed", range(8))
def test_nobody_is_refused_its_part_however_the_others_take(folder: Path, seed: int) -> None:
    """Against a model: all together never pass the limit, and each part can be had to the end."""
    rng = random.Random(seed)
    limit, count = rng.randint(1_000, 10**9), rng.randint(1, 12)
    engine = connect(folder / "gatewayd.db")
    with engine.begin() as connection:
        for at in range(count):
            most = rng.choice([None, None, None, rng.randrange(limit // 50)])
            row = {"id": f"t{at}", "created_at": 1, "store_bytes": most}
            connection.execute(insert(tenants).values(row))
            connection.execute(insert(kept).values(tenant=f"t{at}"))
        has = dict.fromkeys((f"t{at}" for at in range(count)), 0)
        part = limit // (2 * (count + 2))  # with the default tenant, and one that may come

        def takes(name: str, num_bytes: int) -> bool:
            standing = read_standing(connection, name, limit)
            assert (standing.kept.total, standing.part) == (has[name], part)
            left = limit - sum(has.values())
            may = standing.may_keep(has[name], left)
            if has[name] + num_bytes > may:
                return False
            has[name] += num_bytes
            change = update(kept).where(kept.c.tenant == name)
            connection.execute(change.values(responses=has[name]))
            assert sum(has.values()) <= limit
            return True

        greedy = rng.sample(sorted(has), k=rng.randint(1, count))
        for size in (limit // 7, limit // 31, limit // 301, 1 + limit // 4001):
            for name in greedy * 3:
                while takes(name, size):
                    pass
        for name in has:
            of_it = select(tenants.c.store_bytes).where(tenants.c.id == name)
            most = connection.execute(of_it).scalar()
            wanted = min(part, part if most is None else most)
            if has[name] < wanted:
                assert takes(name, wanted - has[name]), name
        # And one that comes now has as much as one of those before it would.
        connection.execute(insert(tenants).values(id="late", created_at=1))
        connection.execute(insert(kept).values(tenant="late"))
        part, has["late"] = limit // (2 * (count + 3)), 0
        assert takes("late", part)
        connection.rollback()
    engine.dispose()


def test_what_comes_is_given_back_whatever_becomes_of_it() -> None:
    coming = IncomingBytes()

    def comes() -> None:
        with coming.counted("a") as hold, coming.counted("a") as other:
            hold.add(10)
            hold.mark_written(4)
            other.add(5)
            assert (coming.of("a"), coming.of("b"), coming.num_unseen) == (15, 0, 11)
            raise Wrong

    with pytest.raises(Wrong):
        comes()
    assert (coming.of("a"), coming.num_unseen) == (0, 0)
