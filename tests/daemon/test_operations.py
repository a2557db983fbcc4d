"""Operator actions over the admin socket: requests, pages, models."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatewayd.admin.client import AdminError, call
from gatewayd.tenants.actions import action_of
from gatewayd.wire.tenants import EmptyBody
from tests.gatewayd.store_fixtures import opened

Start = Callable[..., Any]
NANO = ("-m", "gatewayd", "serve", "--port", "0")
PROMPT = "def add(a, b):"
LONG = {"max_tokens": 200, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def nano(start_daemon: Start, tmp_path: Path) -> Any:
    """A daemon over the embedded model; its socket is ``path``."""
    path, file = tmp_path / "admin.sock", tmp_path / "g.toml"
    file.write_text(
        f'[admin]\nsocket = "{path}"\n[engine]\nthreads = 1\n[eviction]\nstrategy = "retention"\n'
        "[server]\ndrain_seconds = 20\n"
    )
    daemon = start_daemon(NANO, env={"GATEWAYD_CONFIG": str(file), "GATEWAYD_ENGINE__THREADS": "1"})
    daemon.path, daemon.file = path, file
    return daemon


def act(daemon: Any, method: str, route: str, body: object = None) -> Any:
    return call(str(daemon.path), method, f"/admin{route}", body)


def on(daemon: Any, request: str, verb: str, body: object = None) -> Any:
    return act(daemon, "POST", f"/requests/{request}/{verb}", body)


def audited(daemon: Any) -> list[tuple[str, str]]:
    """What is on record, the oldest first; by whom is looked at here."""
    found = act(daemon, "GET", "/audit?limit=200")
    assert found["fault"] is None
    assert all(row["actor"].startswith(f"uid {os.getuid()}, pid ") for row in found["rows"])
    rows = list(reversed(found["rows"]))
    own: dict[str, set[str]] = {}
    for row in rows:
        row["detail"] = json.loads(row["detail"])
        if (told := row["detail"].get("x_request_id")) is not None:
            own.setdefault(told, set()).add(row["target"])
    # Requests are on record by the gateway's own id; each of these was one request.
    assert all(len(ids) == 1 and next(iter(ids)).startswith("req_") for ids in own.values())
    return [(row["action"], row["detail"].get("x_request_id", row["target"])) for row in rows]


def held(daemon: Any) -> int:
    """Sequences that wait for an operator, by the metrics."""
    text = httpx.get(f"{daemon.url}/metrics").text
    return sum(
        int(float(line.rsplit(" ", 1)[1]))
        for line in text.splitlines()
        if line.startswith("vllm:num_requests_waiting_by_reason") and 'reason="held"' in line
    )


async def until(is_so: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(is_so):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


class Stream:
    """A streamed completion, read as it comes."""

    def __init__(self, daemon: Any, http: httpx.AsyncClient, request_id: str, **more: Any) -> None:
        self.text = ""
        self.error: dict[str, Any] | None = None
        self.began = asyncio.Event()
        self.id = request_id
        self._daemon = daemon
        self._http = http
        self._more = more
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        body = {"model": "nano", "prompt": PROMPT, "stream": True, **LONG, **self._more}
        async with self._http.stream(
            "POST",
            f"{self._daemon.url}/v1/completions",
            json=body,
            headers={"x-request-id": self.id},
        ) as answer:
            assert answer.headers["x-request-id"] == self.id
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    self.error = event.get("error", self.error)
                    self.text += "".join(c["text"] for c in event.get("choices", ()))
                    self.began.set()


async def test_requests_are_held_released_bumped_and_cancelled(nano: Any) -> None:
    async with httpx.AsyncClient(timeout=60) as http:
        calm = Stream(nano, http, "calm")
        await calm.task

        one = Stream(nano, http, "one")
        await one.began.wait()
        assert on(nano, "one", "hold") == {"request": "one", "done": "held"}
        await until(lambda: held(nano) == 1)
        await asyncio.sleep(0.3)  # what was on its way has come
        before = one.text
        later = Stream(nano, http, "later", n=2)
        await later.began.wait()  # others make progress
        await asyncio.sleep(0.1)
        assert one.text == before, "it makes no progress"
        now = act(nano, "GET", "/snapshot")
        (row,) = [row for row in now["waiting"] if row["id"] == "one"]
        assert (row["cause"], row["reason"]) == ("held", "held by an operator")
        assert row["is_held"]
        assert on(nano, "later", "bump", {"priority": "realtime"})["done"] == "bumped"
        on(nano, "one", "bump")
        on(nano, "one", "release")
        await one.task
        assert one.text == calm.text
        assert act(nano, "GET", "/requests/one")["causes"]["held"] > 250

        later.task.cancel()
        gone = Stream(nano, http, "gone")
        await gone.began.wait()
        on(nano, "gone", "hold")
        assert on(nano, "gone", "cancel")["done"] == "cancelled"
        await gone.task
        assert gone.error is not None
        assert gone.error["code"] == "cancelled"
        whole = asyncio.create_task(
            http.post(
                f"{nano.url}/v1/completions",
                json={"model": "nano", "prompt": PROMPT, **LONG},
                headers={"x-request-id": "whole"},
            )
        )
        await until(lambda: _is_held(nano, "whole"))
        command = ["request", "cancel", "whole", "--socket", str(nano.path)]
        told = await asyncio.to_thread(gatewayd, *command)
        assert told == "request whole is cancelled\n"
        answer = await whole
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "cancelled"
        assert answer.headers["x-should-retry"] == "false"
        for verb in ("cancel", "hold", "release", "bump"):
            with pytest.raises(AdminError, match="no request 'one' is running or waiting"):
                on(nano, "one", verb)
    actions = audited(nano)
    assert actions == [
        ("request.hold", "one"),
        ("request.bump", "later"),
        ("request.bump", "one"),
        ("request.release", "one"),
        ("request.hold", "gone"),
        ("request.cancel", "gone"),
        ("request.hold", "whole"),
        ("request.cancel", "whole"),
    ]
    await until(lambda: held(nano) == 0)


def gatewayd(*command: str) -> str:
    """Run the command line."""
    done = subprocess.run(
        [sys.executable, "-m", "gatewayd", *command], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_admission_promises_and_pages(nano: Any) -> None:
    def ask(prompt: list[int]) -> httpx.Response:
        return httpx.post(
            f"{nano.url}/v1/completions",
            json={"model": "nano", "prompt": prompt, "max_tokens": 1, "temperature": 0},
            timeout=30,
        )

    def cached(prompt: list[int]) -> int:
        details = ask(prompt).json()["usage"].get("prompt_tokens_details") or {}
        return int(details.get("cached_tokens", 0))

    # Admission
    assert act(nano, "POST", "/pause", {"seconds": 7})["state"] == "paused"
    answer = ask([5, 6])
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "paused")
    assert 1 <= int(answer.headers["retry-after"]) <= 7
    assert nano.readyz()[0] == 503
    assert nano.readyz()[1]["status"] == "paused"
    assert act(nano, "POST", "/resume")["state"] == "ready"
    assert ask([5, 6]).status_code == 200
    act(nano, "POST", "/pause", {"seconds": 0.6})
    assert ask([5, 6]).status_code == 503
    deadline = time.monotonic() + 30
    while ask([5, 6]).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for wrong in (0, -1, 1e9):
        with pytest.raises(AdminError, match="seconds is"):
            act(nano, "POST", "/pause", {"seconds": wrong})

    # Promises
    found = act(nano, "PATCH", "/slo", {"realtime": {"ttft_ms": 123, "e2e_ms": 9000}})
    assert found["realtime"] == {
        "ttft_ms": 123.0,
        "tpot_ms": 50.0,
        "e2e_ms": 9000.0,
        "objective": 0.99,
    }
    metrics = httpx.get(f"{nano.url}/metrics").text
    assert (
        'gatewayd_slo_target_seconds{class="realtime",model_name="nano",slo="ttft"} 0.123'
        in metrics
    )
    assert (
        'gatewayd_slo_target_seconds{class="realtime",model_name="nano",slo="e2e"} 9.0' in metrics
    )
    with pytest.raises(AdminError, match="there is no class 'interactive'; there is realtime"):
        act(nano, "PATCH", "/slo", {"interactive": {"ttft_ms": 1}})
    with pytest.raises(AdminError, match=r"\[slo\]"):
        act(nano, "PATCH", "/slo", {"batch": {"objective": 3}})
    nano.file.write_text(nano.file.read_text() + "[slo.realtime]\nttft_ms = 77\n")
    nano.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 30
    while act(nano, "GET", "/slo")["realtime"]["ttft_ms"] != 77:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not nano.said("restart required: [slo] realtime has changed")

    # Pages
    prompt = list(range(300, 364))
    ask(prompt)
    assert cached([*prompt, 5]) == 64
    pinned = [page for page in range(12) if _pins(nano, page)]
    assert pinned
    with pytest.raises(AdminError, match="page 200 of engine 0 is not cached"):
        act(nano, "PUT", "/prefixes/0/200/pin", {"seconds": 5})
    with pytest.raises(AdminError, match="there is no engine 3"):
        act(nano, "DELETE", "/prefixes/3/0")
    with pytest.raises(AdminError, match="there is no tenant 'nobody'"):
        act(nano, "DELETE", "/prefixes?tenant=nobody")
    assert act(nano, "DELETE", f"/prefixes/0/{pinned[0]}")["pages"] >= 1
    command = ["prefix", "evict", "--all", "--socket", str(nano.path)]
    assert "pages are free" in gatewayd(*command)
    assert cached([*prompt, 5]) == 0
    assert cached([*prompt, 5]) == 64
    rows = act(nano, "GET", "/prefixes?engine=0")["rows"]
    assert {row["tenant"] for row in rows} == {"default"}
    assert act(nano, "DELETE", "/prefixes?tenant=default")["pages"] >= 4, "as it is shown"
    assert cached([*prompt, 5]) == 0

    nothing: list[tuple[str, object]] = [("/limits", {}), ("/slo", {}), ("/slo", {"batch": {}})]
    for route, empty in nothing:
        with pytest.raises(AdminError, match="the body changes nothing; it may set "):
            act(nano, "PATCH", route, empty)
    assert audited(nano)[-1] == ("prefix.evict", "default")

    act(nano, "PATCH", "/limits", {"max_waiting_requests": 99})
    act(nano, "PUT", "/pins", {"seconds": 9, "prompt": prompt})
    act(nano, "PUT", "/strategies/eviction", {"name": "lru"})
    actions = [action for action, _ in audited(nano)]
    for action in ("admission.pause", "admission.resume", "slo.set", "prefix.pin", "prefix.evict"):
        assert action in actions
    assert actions[-5:] == [
        "limits.set",
        *("pin.set.begin", "pin.set"),
        *("strategy.swap.begin", "strategy.swap"),
    ]


def _pins(daemon: Any, page: int) -> bool:
    try:
        return bool(act(daemon, "PUT", f"/prefixes/0/{page}/pin", {"seconds": 30})["tokens"])
    except AdminError:
        return False


async def test_engines_may_be_lost_or_unloaded_while_requests_are_held(nano: Any) -> None:
    async with httpx.AsyncClient(timeout=60) as http:
        calm = Stream(nano, http, "calm")
        await calm.task

        # It has not begun: another engine takes it, and it is held there, too.
        act(nano, "POST", "/pause", {})
        act(nano, "POST", "/resume")
        first = Stream(nano, http, "first", max_tokens=1500)
        await first.began.wait()
        on(nano, "first", "hold")
        os.kill(nano.engine_pid, signal.SIGSTOP)
        waiting = Stream(nano, http, "waiting")
        await until(lambda: _is_held(nano, "waiting"))
        nano.kill_engine()
        await first.task
        assert first.error is not None
        assert first.error["code"] == "engine_restarted"
        await until(lambda: nano.readyz()[0] == 200)
        await until(lambda: held(nano) == 1)
        assert not waiting.text
        on(nano, "waiting", "release")
        await waiting.task
        assert waiting.text == calm.text

        # Unloaded: its memory is free, and requests are told.
        last = Stream(nano, http, "last", max_tokens=1900)
        await last.began.wait()
        on(nano, "last", "hold")
        pid = nano.engine_pid
        state = await asyncio.to_thread(act, nano, "POST", "/models/nano/unload", {"seconds": 0.3})
        assert state == {
            "state": "unloaded",
            "replicas": {"0": "unloaded: unloaded by an operator"},
        }
        await last.task
        assert last.error is not None
        assert last.error["code"] == "model_unloaded"
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        status, details = nano.readyz()
        assert (status, details["status"]) == (503, "unloaded")
        assert details["replicas"][0]["state"] == "unloaded"
        body = {"model": "nano", "prompt": PROMPT, **LONG}
        answer = await http.post(f"{nano.url}/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unloaded")
        assert "retry-after" in answer.headers
        with pytest.raises(AdminError, match="there is no model 'other'; there is 'nano'"):
            act(nano, "POST", "/models/other/load")
        loaded = await asyncio.to_thread(
            gatewayd, "model", "load", "nano", "--socket", str(nano.path)
        )
        assert loaded.startswith("engine 0: starting")
        again = Stream(nano, http, "again")
        await again.task
        assert again.text == calm.text
        assert details["replicas"][0]["restarts"] == 1, "an engine that was unloaded is not lost"

        # Drained: what is there ends well, also what was held, nothing new is taken.
        end = Stream(nano, http, "end")
        await end.began.wait()
        on(nano, "end", "hold")
        await until(lambda: held(nano) == 1)
        assert act(nano, "POST", "/drain")["state"] == "draining"
        await end.task
        assert end.text == calm.text
    assert await asyncio.to_thread(nano.process.wait, 30) == 0


def _is_held(daemon: Any, request: str) -> bool:
    try:
        on(daemon, request, "hold")
    except AdminError:
        return False
    return True


async def test_what_a_stopping_daemon_cuts_is_on_record(nano: Any) -> None:
    """An unload that has begun took effect, whatever came of it."""
    async with httpx.AsyncClient(timeout=60) as http:
        one = Stream(nano, http, "one", max_tokens=1900)
        await one.began.wait()
        asked = asyncio.create_task(
            asyncio.to_thread(act, nano, "POST", "/models/nano/unload", {"seconds": 600})
        )
        await until(lambda: nano.readyz()[1]["status"] == "unloaded")
        nano.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(nano._wait, "draining requests", 10)
        nano.process.send_signal(signal.SIGTERM)  # at once
        assert await asyncio.to_thread(nano.process.wait, 30) == 0
        told = await asyncio.gather(asked, return_exceptions=True)
        assert "internal error of the daemon" not in str(told)
        await one.task
        assert one.error is not None
        assert one.error["code"] == "server_shutdown"
    with opened(nano.path.parent / "state-0" / "gatewayd") as durable:
        action, params = action_of("GET", "/admin/audit")
        shown = await durable.tenancy.act(action, params, EmptyBody(), "a test")
    assert shown["fault"] is None
    assert "model.unload.begin" in [row["action"] for row in shown["rows"]]
