"""Tenant isolation: files, batches, responses, items and cached prompts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gatewayd.store.tables import usage
from gatewayd.text.text_model import TextModel
from tests.gatewayd.batch_gateway import jsonl, line
from tests.gatewayd.fake_fleet import Job, hangs, says
from tests.gatewayd.gateway import CHAT, until
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import Town, bearer, town

CHATS = "/v1/chat/completions"


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


async def upload(here: Town, key: str, content: bytes) -> str:
    answer = await here.gateway.http.post(
        "/v1/files",
        files={"file": ("in.jsonl", content)},
        data={"purpose": "batch"},
        headers=bearer(key),
    )
    assert answer.status_code == 200, answer.text
    file_id: str = answer.json()["id"]
    return file_id


async def get(here: Town, key: str, path: str, method: str = "GET", **more: Any) -> Any:
    answer = await here.gateway.http.request(method, path, headers=bearer(key), **more)
    return answer.status_code, answer


async def batch(here: Town, key: str, file_id: str) -> dict[str, Any]:
    body = {"input_file_id": file_id, "endpoint": CHATS, "completion_window": "24h"}
    answer = await here.post("/v1/batches", key, body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def over(here: Town, key: str, batch_id: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            _, answer = await get(here, key, f"/v1/batches/{batch_id}")
            found: dict[str, Any] = answer.json()
            if found["status"] in ("completed", "failed", "expired", "cancelled"):
                return found
            await asyncio.sleep(0.01)


async def test_files_of_another_tenant_are_not_there(text: TextModel, folder: Path) -> None:
    async with town(text, folder, says([300])) as here:
        await here.tenant("a")
        await here.tenant("b")
        a, b = await here.key("a"), await here.key("b")
        file_id = await upload(here, a, b"secret")
        for path, method in [
            (f"/v1/files/{file_id}", "GET"),
            (f"/v1/files/{file_id}/content", "GET"),
            (f"/v1/files/{file_id}", "DELETE"),
        ]:
            status, answer = await get(here, b, path, method)
            assert (status, answer.json()["error"]["code"]) == (404, "not_found"), path
        status, listed = await get(here, b, "/v1/files")
        assert listed.json()["data"] == []
        taken = await here.post(
            "/v1/batches",
            b,
            {"input_file_id": file_id, "endpoint": CHATS, "completion_window": "24h"},
        )
        assert taken.status_code == 404
        status, content = await get(here, a, f"/v1/files/{file_id}/content")
        assert content.content == b"secret"


async def test_batches_of_another_tenant_are_not_there_and_are_charged_to_their_own(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, says([300])) as here:
        await here.tenant("a", most_tokens=10_000, weight=2.5)
        await here.tenant("b")
        a, b = await here.key("a"), await here.key("b")
        made = await batch(here, a, await upload(here, a, jsonl([line(str(n)) for n in range(3)])))
        for path, method in [
            (f"/v1/batches/{made['id']}", "GET"),
            (f"/v1/batches/{made['id']}/cancel", "POST"),
        ]:
            assert (await get(here, b, path, method))[0] == 404, path
        assert (await get(here, b, "/v1/batches"))[1].json()["data"] == []
        done = await over(here, a, made["id"])
        assert done["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        assert "tenant" not in done
        assert "key_id" not in done
        owners = {(job.request.tenant, job.request.weight) for job in here.gateway.fleet.jobs}
        assert owners == {("a", 2.5)}
        rows = await here.rows(usage)
        assert [(row["tenant"], row["key_id"]) for row in rows] == [("a", a.split("_")[1])] * 3
        spent = done["usage"]["total_tokens"]
        assert (await here.budget("a"))["used_tokens"] == spent
        output = done["output_file_id"]
        assert (await get(here, b, f"/v1/files/{output}/content"))[0] == 404
        assert (await get(here, a, f"/v1/files/{output}/content"))[0] == 200
        await here.check_books()


async def test_lines_beyond_the_budget_fail_and_those_of_a_revoked_key_do_not_run(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, says([300])) as here:
        await here.tenant("a", most_tokens=1)
        key, other = await here.key("a"), await here.key("a")
        file_id = await upload(here, key, jsonl([line("only")]))
        done = await over(here, key, (await batch(here, key, file_id))["id"])
        assert done["request_counts"]["failed"] == 1
        _, errors = await get(here, key, f"/v1/files/{done['error_file_id']}/content")
        assert json.loads(errors.text)["response"]["status_code"] == 429
        await here.act("PATCH", "/admin/tenants/a", {"most_tokens": None, "concurrency": 1})
        here.gateway.fleet.script = hangs
        made = await batch(
            here, key, await upload(here, key, jsonl([line(str(n)) for n in range(2)]))
        )
        await until(lambda: here.gateway.fleet.jobs)
        await here.revoke(key)
        done = await over(here, other, made["id"])
        assert done["request_counts"]["failed"] == 2
        _, errors = await get(here, other, f"/v1/files/{done['error_file_id']}/content")
        told = [json.loads(one)["response"]["body"] for one in errors.text.splitlines()]
        codes = [body["error"]["code"] for body in told]
        assert codes == ["key_revoked"] * 2


async def test_responses_and_their_items_of_another_tenant_are_not_there(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, says([300])) as here:
        await here.tenant("a")
        await here.tenant("b")
        a, b = await here.key("a"), await here.key("b")
        body = {"model": "nano", "input": "hi"}
        kept = (await here.post("/v1/responses", a, body)).json()
        one = f"/v1/responses/{kept['id']}"
        for path, method in [
            (one, "GET"),
            (f"{one}?stream=true", "GET"),
            (f"{one}/input_items", "GET"),
            (f"{one}/cancel", "POST"),
            (one, "DELETE"),
        ]:
            assert (await get(here, b, path, method))[0] == 404, path
        item = kept["output"][0]["id"]
        for more in (
            {"previous_response_id": kept["id"]},
            {"input": [{"type": "item_reference", "id": item}]},
        ):
            for path in ("/v1/responses", "/v1/responses/input_tokens"):
                assert (await here.post(path, b, {**body, **more})).status_code == 404
                assert (await here.post(path, a, {**body, **more})).status_code == 200
        assert (await get(here, a, one))[0] == 200


async def test_a_response_in_the_background_is_its_tenants(text: TextModel, folder: Path) -> None:
    async with town(text, folder, hangs) as here:
        await here.tenant("a", most_tokens=3_000)
        await here.tenant("b")
        a, b = await here.key("a"), await here.key("b")
        body = {"model": "nano", "input": "hi", "background": True}
        begun = (await here.post("/v1/responses", a, body)).json()
        one = f"/v1/responses/{begun['id']}"
        assert (await get(here, b, f"{one}/cancel", "POST"))[0] == 404
        assert (await get(here, b, one, "DELETE"))[0] == 404
        assert (await get(here, a, one))[1].json()["status"] == "in_progress"
        refused = await here.post("/v1/responses", a, body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
        assert (await get(here, a, f"{one}/cancel", "POST"))[1].json()["status"] == "cancelled"


def caching(seen: set[tuple[bytes, tuple[int, ...]]]) -> Any:
    """As an engine's cache: what was computed with the same salt is there."""

    async def script(job: Job) -> None:
        mine = (job.request.salt, tuple(job.request.prompt))
        cached = len(job.request.prompt) - 1 if mine in seen else 0
        seen.add(mine)
        await says([300], cached=cached)(job)

    return script


async def test_an_identical_prompt_of_another_tenant_is_not_cached(
    text: TextModel, folder: Path
) -> None:
    seen: set[tuple[bytes, tuple[int, ...]]] = set()
    async with town(text, folder, caching(seen)) as here:
        keys = {}
        for tenant in ("a", "b"):
            await here.tenant(tenant)
            keys[tenant] = await here.key(tenant)

        async def cached(tenant: str, **more: object) -> int:
            answer = await here.post(CHATS, keys[tenant], {**CHAT, **more})
            found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            return found

        assert await cached("a") == 0
        assert await cached("a") > 0
        assert await cached("b") == 0
        assert await cached("a", cache_salt="mine") == 0
        assert await cached("b", cache_salt="mine") == 0
        assert await cached("b", cache_salt="mine") > 0
    salts = {salt for salt, _ in seen}
    assert len(salts) == 4
    assert b"" not in salts
    # The salt is the server's: another server's, or a guess, is another one.
    (folder / "secret").write_text("0" * 64)
    directory_salts = set()
    async with town(text, folder, caching(seen := set())) as here:
        await here.post(CHATS, await here.key("a"), CHAT)
        directory_salts = {salt for salt, _ in seen}
    assert not directory_salts & salts


async def test_a_tenant_that_is_removed_leaves_nothing_but_its_usage(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, says([300])) as here:
        await here.tenant("a")
        key = await here.key("a")
        file_id = await upload(here, key, b"x")
        kept = (await here.post("/v1/responses", key, {"model": "nano", "input": "hi"})).json()
        await here.act("DELETE", "/admin/tenants/a")
        assert (await here.post(CHATS, key, CHAT)).status_code == 401
        assert len(await here.rows(usage)) == 1
        with pytest.raises(Exception, match="there was a tenant a; choose another name"):
            await here.tenant("a")
        with pytest.raises(Exception, match="there is no tenant 'a'"):
            await here.key("a")
        with pytest.raises(Exception, match="cannot be removed"):
            await here.act("DELETE", "/admin/tenants/default")
        rows = await here.durable.database.read(
            lambda c: c.exec_driver_sql("SELECT id FROM responses").all()
        )
        assert kept["id"] not in [row.id for row in rows]
        files = await here.durable.database.read(
            lambda c: c.exec_driver_sql("SELECT id, expires_at FROM files").all()
        )
        assert [(row.id, row.expires_at is not None) for row in files] == [(file_id, True)]
