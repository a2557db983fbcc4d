"""API keys: identity, rights and lifetime."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from gatewayd.errors import Unauthorized
from gatewayd.http.rights import OURS
from gatewayd.http.server.authentication import PUBLIC
from gatewayd.store.tables import keys
from gatewayd.tenants import directory as directories
from gatewayd.tenants.keys import parsed
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import hangs_after, says
from tests.gatewayd.gateway import CHAT, COMPLETION, until
from tests.gatewayd.http.server.test_authentication import routes
from tests.gatewayd.store_fixtures import copy_of, opened
from tests.gatewayd.tenants.tenant_gateway import bearer, town

CHATS = "/v1/chat/completions"


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


async def test_everything_is_open_until_there_is_a_key(text: TextModel, folder: Path) -> None:
    async with town(text, folder, says([100])) as here:
        assert (await here.gateway.http.post(CHATS, json=CHAT)).status_code == 200
        await here.tenant("a")
        assert (await here.gateway.http.post(CHATS, json=CHAT)).status_code == 200
        key = await here.key("a")
        refused = await here.gateway.http.post(CHATS, json=CHAT)
        assert (await here.post(CHATS, key, CHAT)).status_code == 200
        await here.revoke(key)
        # The last key that is revoked opens nothing.
        after = await here.gateway.http.post(CHATS, json=CHAT)
    assert (refused.status_code, after.status_code) == (401, 401)
    assert refused.json()["error"]["code"] == "missing_api_key"


async def test_without_a_key_every_route_but_the_health_checks_is_401(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, says([100])) as here:
        await here.tenant("a")
        key = await here.key("a", scopes=["*"])
        wrong = key[:-1] + ("A" if key[-1] != "A" else "B")
        for method, path in routes(text):
            for headers in ({}, bearer("no"), bearer(wrong), {"x-api-key": wrong}):
                answer = await here.gateway.http.request(method, path, headers=headers)
                is_refused = answer.status_code in (401, 429)  # many are braked
                assert is_refused == (path not in PUBLIC), (method, path)
            opened_ = await here.gateway.http.request(method, path, headers={"x-api-key": key})
            assert opened_.status_code not in (401, 403), (method, path)


async def test_a_key_that_may_nothing_here_is_403_on_every_route(
    text: TextModel, folder: Path
) -> None:
    found = {path for _, path in routes(text)} - set(PUBLIC)
    assert {path.replace("{model:path}", "nano") for path in OURS} >= found
    async with town(text, folder, says([100])) as here:
        await here.tenant("a")
        rights = {}
        for scope in sorted(set(OURS.values())):
            rights[scope] = await here.key("a", scopes=[scope])
        for method, path in routes(text):
            needed = OURS.get(path.replace("/v1/models/nano", "/v1/models/{model:path}"))
            for scope, key in rights.items():
                answer = await here.gateway.http.request(method, path, headers=bearer(key))
                is_refused = answer.status_code == 403
                assert is_refused == (path not in PUBLIC and scope != needed), (scope, path)


async def test_a_key_for_one_model_is_for_no_other(text: TextModel, folder: Path) -> None:
    async with town(text, folder, says([100])) as here:
        await here.tenant("a")
        key = await here.key("a", scopes=["infer:nano"])
        bodies: list[tuple[str, dict[str, object]]] = [
            (CHATS, {**CHAT}),
            ("/v1/completions", {**COMPLETION}),
            ("/v1/responses", {"input": "hi"}),
            ("/v1/embeddings", {"input": "hi"}),
            ("/v1/rerank", {"query": "a", "documents": ["b"]}),
            ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ]
        for path, body in bodies:
            other = await here.post(path, key, {**body, "model": "gpt-test"})
            assert other.status_code == 403, path
            assert other.json()["error"]["code"] == "permission_denied"
        assert (await here.post(CHATS, key, CHAT)).status_code == 200
        assert [job.request.tenant for job in here.gateway.fleet.jobs] == ["a"]


async def test_keys_that_begin_alike_are_different_keys(text: TextModel, folder: Path) -> None:
    """LiteLLM found a key by its first characters, and let the next one in as the first."""
    async with town(text, folder, says([100])) as here:
        await here.tenant("a")
        key = await here.key("a")
    operator = key[:40] + "x" * (len(key) - 40)
    async with town(text, folder, says([100]), api_key=operator) as here:
        for one, tenant in [(key, "a"), (operator, ""), (key, "a")]:
            assert (await here.post(CHATS, one, CHAT)).status_code == 200
            assert here.gateway.fleet.jobs[-1].request.tenant == tenant
        third = key[:40] + "y" * (len(key) - 40)
        assert (await here.post(CHATS, third, CHAT)).status_code == 401


async def test_a_rotated_key_overlaps_and_then_ends(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with town(text, folder, says([100])) as here:
        await here.tenant("a")
        old = await here.key("a")
        path = f"/admin/keys/{old.split('_')[1]}/rotate"
        new = (await here.act("POST", path, {"overlap_seconds": 60}))["secret"]
        assert new != old
        for key in (old, new):
            assert (await here.post(CHATS, key, CHAT)).status_code == 200
        directory = here.durable.tenancy.directory
        monkeypatch.setattr(directory, "_wall", lambda: time.time() + 61)
        assert (await here.post(CHATS, old, CHAT)).status_code == 401
        assert (await here.post(CHATS, new, CHAT)).status_code == 200
        newest = (await here.act("POST", path))["secret"]
        assert (await here.post(CHATS, new, CHAT)).status_code == 401
        assert (await here.post(CHATS, newest, CHAT)).status_code == 200


async def test_a_key_expires(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with town(text, folder, says([100])) as here:
        await here.tenant("a")
        key = await here.key("a", seconds=60)
        assert (await here.post(CHATS, key, CHAT)).status_code == 200
        directory = here.durable.tenancy.directory
        monkeypatch.setattr(directory, "_wall", lambda: time.time() + 61)
        over = await here.post(CHATS, key, CHAT)
    assert (over.status_code, over.json()["error"]["code"]) == (401, "key_expired")


@pytest.mark.parametrize(
    ("path", "body"), [(CHATS, CHAT), ("/v1/responses", {"model": "nano", "input": "hi"})]
)
async def test_a_stream_of_a_revoked_key_ends_at_once(
    text: TextModel,
    folder: Path,
    path: str,
    body: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Open WebUI let those go on who had been put out."""
    monkeypatch.setattr(directories, "_LOOK_SECONDS", 60.0)
    async with town(text, folder, hangs_after([300, 301])) as here:
        await here.tenant("a")
        key, other = await here.key("a"), await here.key("a")
        async with (
            here.gateway.http.stream(
                "POST", path, json={**body, "stream": True}, headers=bearer(key)
            ) as cut,
            here.gateway.http.stream(
                "POST", path, json={**body, "stream": True}, headers=bearer(other)
            ) as kept,
        ):
            lines, others = cut.aiter_lines(), kept.aiter_lines()
            assert await anext(lines)
            assert await anext(others)
            began = time.monotonic()
            await here.revoke(key)
            rest = "".join([line async for line in lines])
            assert time.monotonic() - began < 30
            assert "revoked" in rest
            await until(lambda: here.gateway.fleet.jobs[0].gone.is_set())
            assert not here.gateway.fleet.jobs[1].gone.is_set()


async def test_a_request_that_waits_for_its_answer_is_told_that_its_key_is_revoked(
    text: TextModel, folder: Path
) -> None:
    async with town(text, folder, hangs_after([300])) as here:
        await here.tenant("a")
        key = await here.key("a")
        waiting = asyncio.create_task(here.post(CHATS, key, CHAT))
        await until(lambda: here.gateway.fleet.jobs)
        await here.revoke(key)
        answer = await waiting
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "key_revoked")


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"gw_",
        b"gw_0123456789ab_",
        b"gw_0123456789ab_" + b"a" * 42,
        b"gw_0123456789ab_" + b"a" * 44,
        b"gw_0123456789AB_" + b"a" * 43,
        b"gw_0123456789ab_" + b"a" * 42 + b"\n",
        b"' OR 1=1 --",
        b"\xff" * 60,
    ],
)
def test_what_is_no_key_is_nobodys(folder: Path, given: bytes) -> None:
    assert parsed(given) is None
    with opened(folder) as durable, pytest.raises(Unauthorized, match="not valid"):
        durable.tenancy.directory.authenticate(given)


async def test_no_secret_and_no_digest_is_in_logs_or_answers(
    text: TextModel, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """LiteLLM showed digests, and took them for keys."""
    caplog.set_level(logging.DEBUG)
    async with town(text, folder, says([100])) as here:
        await here.tenant("a")
        key = await here.key("a", name="for a test")
        (row,) = await here.rows(keys)
        answers = [
            (await here.post(CHATS, key, CHAT)).text,
            (await here.post(CHATS, key + "x", CHAT)).text,
            (await here.post("/v1/nothing", key, CHAT)).text,
            (await here.gateway.http.get("/metrics", headers=bearer(key))).text,
            str(await here.act("GET", "/admin/keys")),
            str(await here.act("GET", "/admin/audit")),
            str(await here.act("GET", "/admin/usage", by="key")),
        ]
        digest = row["digest"].hex()
        refused = await here.post(CHATS, digest, CHAT)
        secret = (folder / "secret").read_text().strip()
    assert refused.status_code == 401
    for hidden in (key, key.split("_", 2)[2], digest, secret):
        for place in (caplog.text, *answers):
            assert hidden[:12] not in place or hidden is key
            assert hidden not in place
    assert key.split("_")[1] in answers[4]
