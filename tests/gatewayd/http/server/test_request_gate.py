"""Request gate: tenant limits before a body is read, on every route and batch line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route, Router

from gatewayd.text.text_model import TextModel
from gatewayd_proto_anthropic.strategy import Anthropic
from gatewayd_proto_kserve.config import KserveConfig
from gatewayd_proto_kserve.strategy import Kserve
from gatewayd_proto_ollama.config import OllamaConfig
from gatewayd_proto_ollama.strategy import Ollama
from gatewayd_proto_tgi.config import TgiConfig
from gatewayd_proto_tgi.strategy import Tgi
from tests.gatewayd.batch_gateway import jsonl, line
from tests.gatewayd.fake_fleet import hangs, says
from tests.gatewayd.gateway import until
from tests.gatewayd.http.test_bodies import recorded
from tests.gatewayd.store_fixtures import copy_of
from tests.gatewayd.tenants.tenant_gateway import Town, bearer, town

COMPLETIONS = "/v1/completions"
ASK = {"model": "nano", "prompt": [7, 8], "max_tokens": 1}
MESSAGES = [{"role": "user", "content": "hi"}]
GOOD: dict[str, dict[str, Any]] = {
    "/tokenize": {"model": "nano", "prompt": "hi"},
    "/v1/tokenize": {"model": "nano", "prompt": "hi"},
    "/detokenize": {"model": "nano", "tokens": [5]},
    "/v1/chat/completions/render": {"model": "nano", "messages": MESSAGES},
    "/v1/completions/render": {"model": "nano", "prompt": "hi"},
    "/v1/responses/input_tokens": {"model": "nano", "input": "hi"},
    "/v1/messages/count_tokens": {"model": "nano", "messages": MESSAGES},
    "/api/show": {"model": "nano"},
}
"""Routes that answer without an engine."""


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> list[Route]:
    """Every route of the app that a test builds."""
    found: list[Route] = []

    class Recorded(Router):
        def __init__(self, routes: list[Any], **more: Any) -> None:
            super().__init__(routes, **more)
            found.extend(routes)

    monkeypatch.setattr("gatewayd.http.app.Router", Recorded)
    return found


@asynccontextmanager
async def whole(text: TextModel, folder: Path, script: Any, **more: Any) -> AsyncIterator[Town]:
    protocols = [
        ("anthropic", Anthropic()),
        ("ollama", Ollama(OllamaConfig())),
        ("tgi", Tgi(TgiConfig())),
        ("kserve", Kserve(KserveConfig())),
    ]
    async with town(text, folder, script, protocols=protocols, **more) as here:
        yield here


def paths_of(routes: list[Route], method: str) -> list[str]:
    paths = [route.path for route in routes if method in (route.methods or ())]
    return [
        path.replace("{model:path}", "nano").replace("{", "").replace("}", "") for path in paths
    ]


async def test_every_post_route_counts_and_is_refused_before_its_body_is_read(
    text: TextModel, folder: Path, routes: list[Route]
) -> None:
    async with whole(text, folder, says([300])) as here:
        paths = [path for path in paths_of(routes, "POST") if not path.endswith("/cancel")]
        assert len(paths) > 20
        for number, path in enumerate(paths):
            tenant = f"t{number}"
            await here.tenant(tenant, requests_per_minute=1)
            headers = bearer(await here.key(tenant, scopes=["*"]))
            first = await here.gateway.http.post(path, json=GOOD.get(path, {}), headers=headers)
            assert "a minute is reached" not in first.text, path
            assert path not in GOOD or first.status_code == 200, (path, first.text)
            # No JSON, and no form: were it looked at, it would be a 400 or 415.
            answer = await here.gateway.http.post(path, content=b"\x00", headers=headers)
            assert answer.status_code == 429, (path, answer.text)
            assert "limit of 1 requests a minute is reached" in answer.text, path
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert answer.headers["x-ratelimit-limit-requests"] == "1"
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        page = (await here.gateway.http.get("/metrics", headers=headers)).text
        refused = [one for one in page.splitlines() if 'status="429"' in one or 'code="429"' in one]
        assert any("/tokenize" in one for one in refused), refused
        assert not any('"other"' in one for one in refused), refused


async def test_reads_and_cancelling_have_limits_of_their_own(
    text: TextModel, folder: Path, routes: list[Route]
) -> None:
    async with whole(text, folder, says([300])) as here:
        reads = {("GET", path) for path in paths_of(routes, "GET")} - {
            ("GET", path) for path in ("/livez", "/readyz", "/health")
        }
        reads |= {("DELETE", path) for path in paths_of(routes, "DELETE")}
        cancels = [path for path in paths_of(routes, "POST") if path.endswith("/cancel")]
        assert len(cancels) == 2
        reads |= {("POST", path) for path in cancels}
        for number, (method, path) in enumerate(sorted(reads)):
            tenant = f"t{number}"
            await here.tenant(tenant, requests_per_minute=1, concurrency=1)
            key = await here.key(tenant, scopes=["*"])
            assert (await here.post(COMPLETIONS, key, ASK)).status_code == 200
            assert (await here.post(COMPLETIONS, key, ASK)).status_code == 429
            bucket = here.durable.tenancy.directory._accounts[tenant]._gate._reads.bucket
            assert bucket is not None
            assert (bucket.size, bucket.level) == (60, 60)
            now = time.monotonic()
            bucket._clock = lambda now=now: now  # type: ignore[misc]
            bucket._seen, bucket._level = now, 1.0
            first, second = [
                await here.gateway.http.request(method, path, headers=bearer(key)) for _ in "12"
            ]
            assert first.status_code != 429, path
            assert second.status_code == 429, path
            assert "limit of 60 reads a minute" in second.text
            assert (await here.gateway.http.get("/livez", headers=bearer(key))).is_success


async def test_what_is_refused_to_a_good_key_counts_as_what_is_answered(
    text: TextModel, folder: Path, routes: list[Route]
) -> None:
    """By its rights on every route, for a path that is nowhere, and for its host header."""
    async with whole(text, folder, says([300])) as here:
        tried = {(method, path) for method in ("POST", "GET") for path in paths_of(routes, method)}
        tried = {(method, path) for method, path in tried if not path.endswith("/cancel")}
        tried -= {("GET", path) for path in ("/livez", "/readyz", "/health")}
        tried |= {("GET", "/livez?verbose=1"), ("POST", "/nowhere"), ("POST", "bad host")}
        assert len(tried) > 40
        for number, (method, path) in enumerate(sorted(tried)):
            tenant = f"t{number}"
            await here.tenant(tenant, requests_per_minute=2, concurrency=1)
            is_reading = path.startswith(("/v1/files", "/v1/batches"))
            headers = bearer(await here.key(tenant, scopes=["infer" if is_reading else "files"]))
            if path == "bad host":
                path, headers["host"] = "/v1/files", "a b"
            gate = here.durable.tenancy.directory._accounts[tenant]._gate
            kind = gate._reads if method == "GET" else gate._work
            assert kind.bucket is not None
            now = time.monotonic()
            kind.bucket._clock = lambda now=now: now  # type: ignore[misc]
            kind.bucket._seen, kind.bucket._level = now, 2.0
            statuses = [
                (await here.gateway.http.request(method, path, headers=headers)).status_code
                for _ in range(4)
            ]
            assert set(statuses[:2]) <= {400, 403, 404}, (method, path, statuses)
            assert statuses[2:] == [429, 429], (method, path, statuses)
            assert kind.num_inside == 0
            assert (await here.gateway.http.get("/livez", headers=bearer("none"))).is_success


async def test_a_request_holds_its_slot_from_its_arrival_to_the_end_of_its_answer(
    text: TextModel, folder: Path
) -> None:
    async with whole(text, folder, hangs) as here:
        await here.tenant("a", concurrency=2)
        key = await here.key("a")
        head = f"POST /tokenize HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n"
        body = json.dumps({"prompt": "hi"}).encode()
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", here.gateway.port)
        writer.write(head.encode())  # its body does not come yet

        async def free() -> int:
            usage = await here.gateway.http.get("/v1/gateway/usage", headers=bearer(key))
            left: int = usage.json()["limits"]["concurrency"]["remaining"]
            return left

        async with asyncio.timeout(30):
            while await free() != 1:
                await asyncio.sleep(0.01)
        running = asyncio.create_task(here.post(COMPLETIONS, key, ASK | {"n": 3}))
        await until(lambda: here.gateway.fleet.jobs)
        assert await free() == 0, "three generations of one request are one request"
        refused = await here.post("/tokenize", key, {"prompt": "hi"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "limit of 2 requests at once" in refused.text
        writer.write(body)
        assert b"200" in await reader.readline()
        assert await free() == 1
        running.cancel()
        await until(lambda: here.gateway.finished)
        assert await free() == 2
        writer.close()


async def test_a_response_in_the_background_holds_one_and_can_be_seen_and_ended(
    text: TextModel, folder: Path
) -> None:
    async with whole(text, folder, hangs) as here:
        await here.tenant("a", concurrency=1)
        key = await here.key("a")
        body = {"model": "nano", "input": "hi", "background": True}
        begun = (await here.post("/v1/responses", key, body)).json()
        one = f"/v1/responses/{begun['id']}"
        assert (await here.post("/tokenize", key, {"prompt": "hi"})).status_code == 429
        seen = await here.gateway.http.get(one, headers=bearer(key))
        assert seen.json()["status"] == "in_progress"
        ended = await here.post(f"{one}/cancel", key, {})
        assert ended.json()["status"] == "cancelled"
        assert (await here.post("/tokenize", key, {"prompt": "hi"})).status_code == 200


async def test_lines_of_a_batch_pass_the_gate_and_all_come_through(
    text: TextModel, folder: Path
) -> None:
    async with whole(text, folder, says([300])) as here:
        await here.tenant("a", concurrency=2)
        key = await here.key("a")
        lines = jsonl([line(str(n)) for n in range(8)])
        sent = await here.gateway.http.post(
            "/v1/files",
            files={"file": ("in.jsonl", lines)},
            data={"purpose": "batch"},
            headers=bearer(key),
        )
        made = await here.post(
            "/v1/batches",
            key,
            {
                "input_file_id": sent.json()["id"],
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            },
        )
        async with asyncio.timeout(30):
            while True:
                found = await here.gateway.http.get(
                    f"/v1/batches/{made.json()['id']}", headers=bearer(key)
                )
                assert found.status_code == 200
                if found.json()["status"] == "completed":
                    break
                await asyncio.sleep(0.02)
        assert found.json()["request_counts"] == {"total": 8, "completed": 8, "failed": 0}
        gate = here.durable.tenancy.directory._accounts["a"]._gate
        assert gate._work.num_inside == 0


async def test_a_key_of_another_model_gets_nothing_of_this_one(
    text: TextModel, folder: Path, routes: list[Route]
) -> None:
    """Whoever adds a route that shows something of a model to such a key fails here."""
    async with whole(text, folder, says([300])) as here:
        await here.tenant("a")
        scopes = ["files", "batches", "models:read", "metrics:read"]
        other = bearer(await here.key("a", scopes=["infer:other-model"]))
        wide = bearer(await here.key("a", scopes=["infer:other-model", *scopes]))
        ours = bearer(await here.key("a", scopes=["infer:gpt-test"]))
        for path in paths_of(routes, "POST"):
            answer = await here.gateway.http.post(
                path, json=GOOD.get(path, {"model": "nano"}), headers=other
            )
            assert answer.status_code == 403, (path, answer.text)
        for path, body in GOOD.items():
            denied = await here.gateway.http.post(path, json=body, headers=wide)
            assert denied.status_code == 403, path
            # Good for one name of the model, which another one does not open.
            status = (404, 403) if path == "/api/show" else (403,)
            named = await here.gateway.http.post(path, json=body, headers=ours)
            assert named.status_code in status, (path, named.text)
            named = await here.gateway.http.post(
                path, json={**body, "model": "gpt-test"}, headers=ours
            )
            assert named.status_code == 200, (path, named.text)
        for headers, models in ((wide, []), (ours | {}, None)):
            listed = await here.gateway.http.get("/v1/models", headers=headers)
            if models is None:
                assert listed.status_code == 403  # it may not read the list at all
                continue
            assert [one["id"] for one in listed.json()["data"]] == models
            one = await here.gateway.http.get("/v1/models/nano", headers=headers)
            assert one.status_code == 404
        reads = bearer(await here.key("a", scopes=["models:read"]))
        listed = await here.gateway.http.get("/v1/models", headers=reads)
        assert len(listed.json()["data"]) == 2


async def test_of_a_flood_one_is_answered_and_nobody_else_waits_for_it(
    text: TextModel, folder: Path
) -> None:
    async with whole(text, folder, says([300])) as here:
        await here.tenant("slow", requests_per_minute=1, most_tokens=1)
        await here.tenant("free")
        await here.tenant("good")
        slow, free, good = [await here.key(tenant) for tenant in ("slow", "free", "good")]
        flood = {"prompt": "lorem ipsum " * 6000}
        refused = [asyncio.create_task(here.post("/tokenize", slow, flood)) for _ in range(24)]
        statuses = Counter([answer.status_code for answer in await asyncio.gather(*refused)])
        assert statuses == {200: 1, 429: 23}
        many = [asyncio.create_task(here.post("/tokenize", free, flood)) for _ in range(24)]
        kinds = (text.tokenizer._threads, text.tokenizer._long_thread)
        await until(lambda: sum(one.stats.waiting for one in kinds))
        body = {**ASK, "prompt": "dolor sit " * 400}
        assert (await here.post(COMPLETIONS, good, body)).status_code == 200
        assert sum(task.done() for task in many) < 8, "of 24 that had come before it"
        assert {answer.status_code for answer in await asyncio.gather(*many)} == {200}


async def test_whatever_clients_do_all_slots_and_bytes_come_back(
    text: TextModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recorded(monkeypatch)
    rng = random.Random(46)
    slowly = says([300, 301, 302], delay=0.01)
    async with whole(text, folder, slowly) as here:
        await here.tenant("a", concurrency=2, most_tokens=100_000)
        key = await here.key("a")
        gate = here.durable.tenancy.directory._accounts["a"]._gate
        seen = Counter[int]()

        async def one() -> None:
            path = rng.choice(
                [*GOOD, COMPLETIONS, "/v1/responses", "/v1/embeddings", "/v1/nowhere"]
            )
            body: dict[str, Any] = dict(GOOD.get(path, {"model": "nano"}))
            if path == COMPLETIONS:
                body = {**ASK, "stream": rng.random() < 0.5, "n": rng.randint(1, 3)}
            if path == "/v1/responses":
                body = {"model": "nano", "input": "hi", "background": rng.random() < 0.5}
            if rng.random() < 0.3:
                body["user"] = "u" * 100_000
            if rng.random() < 0.2:
                body["model"] = "none"
            timeout = rng.choice([0.005, 0.02, 5.0])
            with contextlib.suppress(httpx.TimeoutException):
                answer = await here.post(path, key, body, timeout=timeout)
                seen[answer.status_code] += 1
            assert gate._work.num_inside <= 2

        for _ in range(12):
            await asyncio.gather(*[one() for _ in range(12)])
        assert seen[200] > 10
        assert seen[429] > 0
        await until(lambda: not (gate._work.num_inside or made[0].total))
        assert (gate._reads.num_inside, made[0].total) == (0, 0)
