"""Fuzzed requests: a clear answer to each from the same engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from gatewayd.admin.client import call
from gatewayd.errors import MISTAKE
from gatewayd.store.tables import usage
from tests.daemon.conftest import Running, nano_daemon
from tests.daemon.request_fuzz import MOST_TOKENS, bodies
from tests.daemon.stream_ends import ANTHROPIC_TYPES, Told, told_by
from tests.daemon.test_tenants import rows
from tests.docs.test_errors import documented

AT_ONCE = 10
LEAVING = 2
"""Of those, which are sent a second time and left."""
SECONDS = 30.0
"""Until an answer counts as a hang."""

GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "nano",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": MOST_TOKENS,
    },
    "/v1/completions": {"model": "nano", "prompt": "hi", "max_tokens": MOST_TOKENS},
    "/v1/embeddings": {"model": "nano", "input": "hi"},
    "/v1/decisions": {
        "model": "nano",
        "input": "hi",
        "questions": [{"type": "predicate", "instructions": "It is short."}],
    },
    "/v1/responses": {"model": "nano", "input": "hi", "max_output_tokens": MOST_TOKENS},
    "/v1/responses/input_tokens": {"model": "nano", "input": "hi"},
    "/v1/batches": {
        "input_file_id": "file-none",
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    },
    "/rerank": {"query": "hi", "documents": ["ho"]},
    "/score": {"text_1": "hi", "text_2": "ho"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [100]},
    "/v1/watermark/detect": {"text": "hi"},
    "/v1/messages": {
        "model": "nano",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": MOST_TOKENS,
    },
    "/v1/messages/count_tokens": {
        "model": "nano",
        "messages": [{"role": "user", "content": "hi"}],
    },
    "/api/chat": {
        "model": "nano",
        "messages": [{"role": "user", "content": "hi"}],
        "options": {"num_predict": MOST_TOKENS},
    },
    "/api/generate": {
        "model": "nano",
        "prompt": "hi",
        "options": {"num_predict": MOST_TOKENS},
    },
    "/api/show": {"model": "nano"},
    "/api/embed": {"model": "nano", "input": "hi"},
    "/api/embeddings": {"model": "nano", "prompt": "hi"},
    "/generate": {"inputs": "hi", "parameters": {"max_new_tokens": MOST_TOKENS}},
    "/generate_stream": {"inputs": "hi", "parameters": {"max_new_tokens": MOST_TOKENS}},
    "/": {"inputs": "hi", "parameters": {"max_new_tokens": MOST_TOKENS}},
}
"""A good body for each route with one; a dry run's is its route's, and so is a prefix's."""

PULLS = "/api/pull"
"""Asks the Hub; ``test_hub`` has one of its own."""
SENTENCES = frozenset({"/generate", "/generate_stream", "/"})
"""TGI's routes, whose errors have no code."""
FOREIGN = SENTENCES | {path for path in GOOD if path.startswith(("/api/", "/v1/messages"))}
"""Routes of other APIs, whose errors have other forms."""


STREAMING = frozenset(
    path
    for path, body in GOOD.items()
    if {"max_tokens", "max_output_tokens", "options", "parameters"} & {*body}
) - {"/generate"}
CODES = frozenset(code for _, code in documented())
"""Of errors, as docs/api/errors.md has them."""


def good_body(path: str) -> dict[str, Any]:
    path = path.removesuffix("/render")
    return GOOD[path] if path in GOOD else GOOD[path.removeprefix("/v1").removeprefix("/v2")]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A daemon for all, whose engine must be the same one at the end."""
    folder = tmp_path_factory.mktemp("fuzz")
    store, socket = folder / "store", str(folder / "admin.sock")
    env = {
        "GATEWAYD_STORE__PATH": str(store),
        "GATEWAYD_ENGINE__THREADS": "1",
        "GATEWAYD_PROTOCOL__STRATEGIES": '["anthropic", "ollama", "tgi"]',
        "GATEWAYD_ADMIN__SOCKET": socket,
    }
    with nano_daemon(folder, **env) as running:
        call(socket, "PATCH", "/admin/tenants/default", {"weight": 2})  # so that it is counted
        pid = running.engine_pid
        yield running
        assert running.engine_pid == pid
        assert not running.said("Traceback")
        check_charges(running, store)


def check_charges(daemon: Running, store: Path) -> None:
    """All that the engine has done is on the account of a request that took tokens."""
    deadline = time.monotonic() + 30
    while True:
        page = httpx.get(f"{daemon.url}/metrics").text
        (busy,) = re.findall(r"^gatewayd_engine_busy_seconds_total{.*} (\S+)$", page, re.M)
        found = rows(store, usage)
        if abs(sum(row.engine_seconds for row in found) - float(busy)) < 1e-6:
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [row for row in found if row.engine_seconds > 0 and not row.prompt_tokens] == []
    assert "gatewayd_uncharged_engine_seconds_total 0.0" in page
    assert Counter(row.outcome for row in found)["abort"] > 0


def document_of(daemon: Running) -> dict[str, Any]:
    served: dict[str, Any] = httpx.get(f"{daemon.url}/openapi.json").json()
    return served


def requests_of(document: dict[str, Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """A route and a body for it."""
    routes = []
    for path, methods in document["paths"].items():
        if path == PULLS:
            continue
        content = methods.get("post", {}).get("requestBody", {}).get("content", {})
        if "application/json" in content:
            reference = content["application/json"]["schema"]["$ref"]
            body = bodies(document, reference, good_body(path))
            routes.append(st.tuples(st.just(path), body))
    return st.one_of(routes)


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Told | None:
    """Send one request and look at its answer, to its end; what a stream told."""
    answer = await client.post(
        path, content=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    if answer.status_code == 200:
        assert answer.content
        told = told_by(path, answer)
        if told is not None:
            check_stream(path, body, told)
        return told
    assert answer.status_code in (400, 404), (path, body, answer.text)
    if path in FOREIGN:
        assert answer.json()["error"], (path, body)
        return None
    error = answer.json()["error"]
    assert error["message"], (path, body)
    assert error["type"] in ("invalid_request_error", "not_found_error"), (path, body)
    return None


async def leave(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    """Send one, and leave within a step or a few."""
    seconds = random.Random(json.dumps(body)).uniform(0.001, 0.06)
    with contextlib.suppress(httpx.TimeoutException):
        await client.post(
            path,
            content=json.dumps(body).encode(),
            headers={"content-type": "application/json"},
            timeout=httpx.Timeout(SECONDS, read=seconds),
        )


def check_stream(path: str, body: dict[str, Any], told: Told) -> None:
    """It came to its end; what it says of an error is what the documentation knows."""
    assert told.is_over, (path, body, told.events[-1:])
    for error in told.errors:
        if path.startswith("/api/") or path in SENTENCES:
            assert error != MISTAKE, (path, body)
        elif path == "/v1/messages":
            assert error in ANTHROPIC_TYPES, (path, body, error)
        else:
            assert error in CODES - {"internal_error"}, (path, body, error)


def fuzz(daemon: Running, examples: int) -> None:
    requests = requests_of(document_of(daemon))
    streams: Counter[str] = Counter()

    @settings(
        max_examples=examples // AT_ONCE,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(batch=st.lists(requests, min_size=AT_ONCE, max_size=AT_ONCE))
    def run(batch: list[tuple[str, dict[str, Any]]]) -> None:
        async def all_at_once() -> None:
            async with httpx.AsyncClient(base_url=daemon.url, timeout=SECONDS) as client:
                leaving = [asyncio.create_task(leave(client, *one)) for one in batch[:LEAVING]]
                told = await asyncio.gather(*(ask(client, path, body) for path, body in batch))
                await asyncio.gather(*leaving)
            streams.update(path for (path, _), one in zip(batch, told, strict=True) if one)

        asyncio.run(all_at_once())

    run()
    assert streams.total() > examples // 100


async def test_a_stream_of_each_route_is_read_to_its_end(daemon: Running) -> None:
    async with httpx.AsyncClient(base_url=daemon.url, timeout=SECONDS) as client:
        for path in STREAMING:
            told = await ask(client, path, {**GOOD[path], "stream": True})
            assert told is not None, path
            assert told.errors == []


def test_a_thousand_nearly_right_requests_get_a_clear_answer(daemon: Running) -> None:
    fuzz(daemon, 1_000)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_nearly_right_requests_get_a_clear_answer(daemon: Running) -> None:
    fuzz(daemon, 100_000)


def within_reach(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The same for the model that is served, and for a few tokens: else all would be a 404."""
    good = good_body(path) if path in GOOD or path.endswith("/render") else {}
    bounds = ("max_tokens", "max_output_tokens")
    few: dict[str, Any] = {name: good[name] for name in bounds if name in good}
    for name in ("options", "parameters"):
        if isinstance(options := body.get(name, {}), dict) and name in good:
            few[name] = {**options, **good[name]}
    if "model" in body:
        few["model"] = "nano"
    return {**body, **few}


def crawl(daemon: Running, examples: int) -> None:
    """Schemathesis over the served document: no 500, no hang, nothing it does not describe."""
    schema = schemathesis.openapi.from_url(f"{daemon.url}/openapi.json")
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        if operation.path == PULLS:
            continue

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def run(case: schemathesis.Case[Any]) -> None:
            if isinstance(case.body, dict):
                case.body = within_reach(case.path, case.body)
            response = case.call(timeout=SECONDS)
            checks = [status_code_conformance, content_type_conformance]
            # Whoever gives itself no time to wait is told that it has waited for too long.
            if not (response.status_code == 504 and "its queue_timeout of" in response.text):
                checks.append(not_a_server_error)
            case.validate_response(response, checks=checks)

        run()


def test_schemathesis_finds_nothing(daemon: Running) -> None:
    crawl(daemon, 5)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_schemathesis_finds_nothing_in_a_long_time(daemon: Running) -> None:
    crawl(daemon, 1_000)
