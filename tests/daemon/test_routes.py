"""Routes of a real daemon: two embedded models, one of whose engines is killed again and again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.conftest import NANO_DAEMON, Running
from tests.daemon.forked_daemons import ROOT, forker

CONFIGURATION = """
[store]
path = "{folder}/store"
[admin]
socket = "{folder}/admin.sock"
[models.small]
path = "embedded:nano-draft"
[models.large]
path = "embedded:nano"
[routes.safe]
targets = ["large", "small"]
[routes.lenient]
strategy = "cascade"
targets = ["small", "large"]
[routes.lenient.cascade]
min_logprob = -99.0
[routes.strict]
strategy = "cascade"
targets = ["small", "large"]
[routes.strict.cascade]
min_logprob = 0.0
"""
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What does json.dumps do?"}],
    "max_tokens": 3,
    "temperature": 0,
}
REQUESTS = 1000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("routes")
    file, log = folder / "gatewayd.toml", folder / "log"
    file.write_text(CONFIGURATION.format(folder=folder))
    arguments = [*NANO_DAEMON, "--config", str(file)]
    running = Running(forker().start(arguments, dict(os.environ), log, ROOT), log)
    try:
        running.wait_ready()
        yield running
        assert running.stop() == 0
    finally:
        running.process.kill()
        running.process.wait()


def engine_of(daemon: Running, model: str) -> int | None:
    models = daemon.readyz()[1]["models"]
    (found,) = [one for one in models if one["model"] == model]
    pid: int | None = found["replicas"][0]["pid"]
    return pid


def explained(daemon: Running, request_id: str) -> tuple[dict[str, Any], str]:
    """The explanation as JSON, and as ``gatewayd explain`` prints it."""
    config = str(daemon.log.parent / "gatewayd.toml")
    command = [sys.executable, "-m", "gatewayd", "explain", request_id, "--config", config]
    found = [
        subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout
        for more in (["--json"], [])
    ]
    return json.loads(found[0]), found[1]


@pytest.mark.parametrize(
    ("route", "target", "outcomes"),
    [
        ("lenient", "small", ["answered"]),
        ("strict", "large", ["rejected", "answered"]),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_cascade_answers_as_its_target_alone(
    daemon: Running, route: str, target: str, outcomes: list[str], stream: bool
) -> None:
    body = {**ASKED, "max_tokens": 12, "stream": stream}
    with httpx.Client(base_url=daemon.url, timeout=120) as client:
        alone = client.post("/v1/chat/completions", json={**body, "model": target})
        routed = client.post("/v1/chat/completions", json={**body, "model": route})
    assert routed.headers["x-gatewayd-target"] == target
    assert text_of(routed, stream) == text_of(alone, stream)
    assert "logprob" not in routed.text.replace('"logprobs":null', "")
    found, shown = explained(daemon, routed.headers["x-request-id"])
    assert [one["outcome"] for one in found["route"]["attempts"]] == outcomes
    assert found["route"]["attempts"][0]["score"] < 0
    assert f"route {route} (cascade): the configured order; answers are judged" in shown
    assert found["request_id"] in routed.headers["x-request-id"]


def text_of(answer: httpx.Response, stream: bool) -> str:
    if not stream:
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events]
    return "".join(deltas)


async def test_all_of_a_thousand_requests_are_served_while_one_target_dies(
    daemon: Running,
) -> None:
    """After the others: an engine that dies too often is not started any more."""
    targets: Counter[str] = Counter()
    kills, slots = 0, asyncio.Semaphore(16)
    limits = httpx.Limits(max_connections=16)
    async with httpx.AsyncClient(base_url=daemon.url, timeout=120, limits=limits) as client:

        async def one() -> None:
            async with slots:
                answer = await client.post("/v1/chat/completions", json={**ASKED, "model": "safe"})
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 3
            targets[answer.headers["x-gatewayd-target"]] += 1

        tasks = [asyncio.create_task(one()) for _ in range(REQUESTS)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.2)
            served = targets.total()
            if served > 100 and (pid := await asyncio.to_thread(engine_of, daemon, "large")):
                os.kill(pid, signal.SIGKILL)
                kills += 1
        await asyncio.gather(*tasks)
        page = (await client.get("/metrics")).text
    assert targets.total() == REQUESTS
    assert kills >= 1
    assert min(targets["large"], targets["small"]) > 50
    assert 'outcome="answered",route="safe",target="small"' in page


def test_a_target_that_is_not_served_is_named_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "gatewayd.toml"
    file.write_text('[routes.r]\ntargets = ["nan"]\n')
    command = [sys.executable, *NANO_DAEMON, "--config", str(file)]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert ended.returncode == 1
    assert "routes.r.targets: no model is named 'nan'; did you mean 'nano'?" in ended.stderr
