"""Grants: priority class and cache retention as granted, on every route."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatewayd.daemon.resources import PersistentResources
from gatewayd.errors import NumericalError
from gatewayd.http.openai.granted import FIELDS
from gatewayd.text.text_model import TextModel
from gatewayd_hooks.scheduling import Priority
from gatewayd_proto_anthropic.strategy import Anthropic
from gatewayd_proto_kserve.config import KserveConfig
from gatewayd_proto_kserve.strategy import Kserve
from gatewayd_proto_ollama.config import OllamaConfig
from gatewayd_proto_ollama.strategy import Ollama
from gatewayd_proto_tgi.config import TgiConfig
from gatewayd_proto_tgi.strategy import Tgi
from tests.gatewayd.batch_gateway import jsonl, line
from tests.gatewayd.fake_fleet import FakeFleet, fails, says
from tests.gatewayd.gateway import running
from tests.gatewayd.store_fixtures import copy_of, opened
from tests.gatewayd.tenants.tenant_gateway import Town, bearer, town
from tests.gatewayd.tenants.test_isolation import over, upload

HI = [{"role": "user", "content": "hi"}]
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
VECTORS = {"model": "nano", "input": "hi"}
SCORES = {"model": "nano", "query": "a", "documents": ["b"]}
PAIR = {"model": "nano", "text_1": "a", "text_2": "b"}
DECISION = {
    "model": "nano",
    "input": "hi",
    "questions": [{"type": "predicate", "instructions": "Is it so?"}],
}
BODIES: dict[str, dict[str, Any]] = {
    CHATS: {"model": "nano", "messages": HI, "max_tokens": 2},
    COMPLETIONS: {"model": "nano", "prompt": "hi", "max_tokens": 2},
    f"{CHATS}/render": {"model": "nano", "messages": HI},
    f"{COMPLETIONS}/render": {"model": "nano", "prompt": "hi"},
    "/v1/embeddings": VECTORS,
    "/v1/decisions": DECISION,
    "/v1/rerank": SCORES,
    "/v2/rerank": SCORES,
    "/rerank": SCORES,
    "/v1/score": PAIR,
    "/score": PAIR,
    "/v1/responses": {"model": "nano", "input": "hi", "store": False},
    "/v1/messages": {"model": "nano", "messages": HI, "max_tokens": 2},
    "/v1/messages/count_tokens": {"model": "nano", "messages": HI},
}
"""Of every route whose table has a field that buys urgency or cache: a good one without it."""
TOO_MUCH: dict[str, list[Any]] = {
    "priority": ["realtime", -1],
    "service_tier": ["priority", "fast", "auto"],
    "kv_retention": [{"priority": 51}, {"priority": 100, "seconds": 86400}],
    "prompt_cache_retention": ["24h"],
    "speed": ["fast"],
}
BUYS = re.compile(r"priorit|tier|retention|speed|urgen|service_class|deadline")
USUAL = (Priority.STANDARD, (50, 0.0))


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


@asynccontextmanager
async def served(text: TextModel, folder: Path, **more: Any) -> AsyncIterator[Town]:
    protocols: Any = [
        ("anthropic", Anthropic()),
        ("ollama", Ollama(OllamaConfig())),
        ("tgi", Tgi(TgiConfig())),
        ("kserve", Kserve(KserveConfig())),
    ]
    async with town(text, folder, says([300, 301]), protocols=protocols, **more) as here:
        yield here


def told(answer: httpx.Response) -> tuple[int, str | None, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


async def test_every_field_of_every_route_that_buys_urgency_or_cache_is_bound(
    text: TextModel, folder: Path
) -> None:
    async with served(text, folder) as here:
        # What is asked matters, not what comes of it: vectors need a fleet of their own.
        here.gateway.fleet.script = fails(NumericalError("nothing comes of it"))
        await here.tenant("acme")
        key = await here.key("acme")
        answer = await here.gateway.http.get("/openapi.json", headers=bearer(key))
        document = answer.json()
        schemas = document["components"]["schemas"]
        seen: set[tuple[str, str]] = set()
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                content = operation.get("requestBody", {}).get("content", {})
                reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
                known = schemas.get(reference.rpartition("/")[2], {}).get("properties", {})
                for name in filter(BUYS.search, known):
                    if known[name]["x-gateway-support"] != "served":
                        continue
                    assert method == "post"
                    assert name in TOO_MUCH, (
                        f"{path} has {name}: see gatewayd/http/openai/granted.py"
                    )
                    for value in TOO_MUCH[name]:
                        await check_bound(here, key, path, name, value, known[name])
                        seen.add((path, name))
        assert {name for _, name in seen} == set(TOO_MUCH)
        assert {path for path, _ in seen} == BODIES.keys()
        assert {"priority", "service_tier", "kv_retention", "prompt_cache_retention"} == set(FIELDS)


async def check_bound(
    here: Town, key: str, path: str, name: str, value: Any, schema: dict[str, Any]
) -> None:
    """It is refused by name, or runs in the usual class with the usual retention."""
    jobs = here.gateway.fleet.jobs
    jobs.clear()
    answer = await here.post(path, key, {**BODIES[path], name: value})
    what = f"{path} {name}={value!r}: {answer.text}"
    if answer.status_code == 403:
        _, code, param = told(answer)
        assert code == "permission_denied", what
        assert param is not None, what
        assert param.partition(".")[0] == name, what
        assert not jobs, what
        return
    if answer.status_code == 400:  # of Anthropic's words and of numbers not every table has all
        assert not jobs, what
        assert name in answer.text, what
        return
    for job in jobs:
        assert (job.request.priority, job.request.retention) == USUAL, what
    if path.endswith(("/render", "/count_tokens")) or value == "auto":
        return
    assert jobs, what
    assert name not in ("priority", "kv_retention"), what


async def test_what_is_not_granted_is_refused_with_its_limit(text: TextModel, folder: Path) -> None:
    async with served(text, folder) as here:
        await here.tenant("acme")
        await here.tenant("vip", service_class="realtime", retention_priority=80)
        acme, vip = await here.key("acme"), await here.key("vip")
        for path in (CHATS, COMPLETIONS):
            urgent = {**BODIES[path], "priority": "realtime"}
            answer = await here.post(path, acme, urgent)
            assert told(answer) == (403, "permission_denied", "priority")
            sentence = answer.json()["error"]["message"]
            for part in ("'realtime'", "tenant acme", "is standard", "ask the operator"):
                assert part.removeprefix("ask ") in sentence
            assert (await here.post(path, vip, urgent)).status_code == 200
            kept = {**BODIES[path], "kv_retention": {"priority": 80, "seconds": 60}}
            answer = await here.post(path, acme, kept)
            assert told(answer) == (403, "permission_denied", "kv_retention.priority")
            assert "is 80; tenant acme may ask for at most 50" in answer.text
            assert (await here.post(path, vip, kept)).status_code == 200
        last = here.gateway.fleet.jobs[-1].request
        assert (last.priority, last.retention) == (Priority.STANDARD, (80, 60.0))
        await here.act("PATCH", "/admin/tenants/vip", {"retention_seconds": 59})
        answer = await here.post(COMPLETIONS, vip, kept)
        assert told(answer) == (403, "permission_denied", "kv_retention.seconds")
        assert "is 60; tenant vip may ask for at most 59" in answer.text
        lower = {"kv_retention": {"priority": 50, "seconds": 86400}, "priority": "batch"}
        assert (await here.post(COMPLETIONS, acme, BODIES[COMPLETIONS] | lower)).status_code == 200
        await here.act("PATCH", "/admin/tenants/vip", {"service_class": None})
        assert (await here.post(path, vip, urgent)).status_code == 403


async def test_what_other_apis_promise_is_answered_in_the_class_that_may_be_had(
    text: TextModel, folder: Path
) -> None:
    async with served(text, folder) as here:
        await here.tenant("acme")
        await here.tenant("vip", service_class="realtime", retention_priority=100)
        await here.tenant("slow", service_class="batch")
        keys = {name: await here.key(name) for name in ("acme", "vip", "slow")}
        jobs, header = here.gateway.fleet.jobs, "x-gateway-ignored-params"
        for tenant, asked, tier, number in (
            ("acme", "priority", "default", Priority.STANDARD),
            ("acme", "fast", "default", Priority.STANDARD),
            ("acme", "flex", "flex", Priority.BATCH),
            ("vip", "fast", "priority", Priority.REALTIME),
            ("slow", "auto", "flex", Priority.BATCH),
            ("slow", None, "flex", Priority.BATCH),
        ):
            for path in (CHATS, "/v1/responses"):
                body = BODIES[path] | {"service_tier": asked}
                answer = await here.post(path, keys[tenant], body)
                assert answer.status_code == 200, answer.text
                assert answer.json()["service_tier"] == tier, (tenant, asked, path)
                assert jobs[-1].request.priority == number
                is_lower = asked in ("priority", "fast", "auto") and tenant != "vip"
                assert answer.headers.get(header) == ("service_tier" if is_lower else None)
        for tenant, retention, ignored in (
            ("acme", (50, 0.0), "prompt_cache_retention"),
            ("vip", (75, 86400.0), None),
        ):
            for path in (CHATS, COMPLETIONS, "/v1/responses"):
                body = BODIES[path] | {"prompt_cache_retention": "24h"}
                answer = await here.post(path, keys[tenant], body)
                assert jobs[-1].request.retention == retention
                assert answer.headers.get(header) == ignored
        body = BODIES["/v1/messages"] | {"speed": "fast"}
        answer = await here.post("/v1/messages", keys["acme"], body)
        assert (answer.status_code, answer.headers.get(header)) == (200, "speed")
        assert (await here.post("/v1/messages", keys["vip"], body)).headers.get(header) is None
        assert jobs[-1].request.priority == Priority.REALTIME


async def test_lines_of_batches_have_no_more_than_their_tenant(
    text: TextModel, folder: Path
) -> None:
    async with served(text, folder) as here:
        await here.tenant("acme")
        key = await here.key("acme")
        asked = [{"service_tier": "fast"}, {"kv_retention": {"priority": 90}}]
        lines = [line(str(at)) for at in range(2)]
        for one, fields in zip(lines, asked, strict=True):
            one["body"] |= fields
        file_id = await upload(here, key, jsonl(lines))
        body = {"input_file_id": file_id, "endpoint": CHATS, "completion_window": "24h"}
        made = (await here.post("/v1/batches", key, body)).json()
        ended = await over(here, key, made["id"])
        counts = ended["request_counts"]
        assert (counts["completed"], counts["failed"]) == (1, 1)
        (job,) = here.gateway.fleet.jobs
        assert job.request.priority == Priority.BATCH
        path = f"/v1/files/{ended['error_file_id']}/content"
        content = (await here.gateway.http.get(path, headers=bearer(key))).text
        assert "permission_denied" in content


async def test_the_operator_and_servers_without_keys_may_ask_for_anything(
    text: TextModel, folder: Path
) -> None:
    most = {"priority": "realtime", "kv_retention": {"priority": 100, "seconds": 86400}}

    async def asks(durable: PersistentResources, key: str | None) -> None:
        async with running(text, FakeFleet(says([300])), durable=durable, api_key=key) as gateway:
            here = Town(gateway, durable)
            answer = await here.post(COMPLETIONS, key or "none", BODIES[COMPLETIONS] | most)
            assert answer.status_code == 200, answer.text
            request = gateway.fleet.jobs[-1].request
            assert (request.priority, request.retention) == (Priority.REALTIME, (100, 86400.0))
            # A limit of the default tenant is counted for the operator; its grant binds its keys.
            terms = {"service_class": "batch", "concurrency": 9}
            await here.act("PATCH", "/admin/tenants/default", terms)
            answer = await here.post(COMPLETIONS, key or "none", BODIES[COMPLETIONS] | most)
            assert answer.status_code == 200, answer.text
            if key is not None:
                made = await here.key("default")
                refused = await here.post(COMPLETIONS, made, BODIES[COMPLETIONS] | most)
                assert refused.status_code == 403

    for key in (None, "operators-key"):
        with opened(folder) as durable:
            await asks(durable, key)


async def test_a_key_with_every_scope_has_no_more_than_its_tenant(
    text: TextModel, folder: Path
) -> None:
    async with served(text, folder) as here:
        await here.tenant("acme")
        key = await here.key("acme", scopes=["*"])
        body = BODIES[COMPLETIONS] | {"priority": -5}
        assert (await here.post(COMPLETIONS, key, body)).status_code == 403
