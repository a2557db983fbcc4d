"""Refused and abandoned requests: explained with time and reason."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatewayd.admin.client import AdminError, call
from tests.gatewayd.tenants.tenant_gateway import bearer

BODY = {"model": "nano", "prompt": [7, 8, 9], "max_tokens": 300, "ignore_eos": True}


class Desk:
    """A daemon with its admin socket."""

    def __init__(self, url: str, socket: str) -> None:
        self.http = httpx.AsyncClient(base_url=url, timeout=30)
        self._socket = socket

    async def admin(self, method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(call, self._socket, method, path, body)

    async def tenant(self, name: str, **terms: object) -> str:
        await self.admin("POST", "/admin/tenants", {"tenant": name, "terms": terms})
        secret: str = (await self.admin("POST", "/admin/keys", {"tenant": name}))["secret"]
        return secret

    async def ask(
        self, name: str, key: str, path: str = "/v1/completions", **fields: object
    ) -> httpx.Response:
        headers = {"x-request-id": name, **bearer(key)}
        body = fields if path != "/v1/completions" else {**BODY, **fields}
        return await self.http.post(path, json=body, headers=headers)

    async def until_there(self, name: str, tokens: int = 0) -> None:
        """Wait until one is known, and has so many tokens."""
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(AdminError):
                    found = await self.admin("GET", f"/admin/requests/{name}")
                    if found["completion_tokens"] >= tokens:
                        return
                await asyncio.sleep(0.01)

    async def why(self, name: str) -> Any:
        """What is explained of one; its parts must be its whole."""
        found = await self.admin("GET", f"/admin/requests/{name}")
        assert sum(part["ms"] for part in found["parts"]) == pytest.approx(found["ms"], abs=1e-6)
        assert sum(found["causes"].values()) == pytest.approx(found["ms"], abs=1e-6)
        at = 0.0
        for part in found["parts"]:
            if part["begin_ms"] is not None:
                assert part["begin_ms"] == pytest.approx(at, abs=1e-6)
            at += part["ms"]
        return found


def said(found: Any, answer: httpx.Response) -> None:
    """An explanation has the answer's own words."""
    error = answer.json()["error"]
    told = found["why"]
    assert told == {
        "status": answer.status_code,
        "code": error["code"],
        "message": error["message"],
    }
    assert f"{answer.status_code} {error['code']}" in found["verdict"]


async def test_each_refusal_is_explained(start_daemon: Any, tmp_path: Path) -> None:
    socket = str(tmp_path / "admin.sock")
    daemon = await asyncio.to_thread(
        start_daemon,
        env={"FAKE_STEP_MS": "5", "FAKE_MAX_RUNNING": "1"},
        **{"admin.socket": socket, "queue.max_waiting_requests": 1, "admission.strategy": "room"},
    )
    desk = Desk(daemon.url, socket)
    rich = await desk.tenant("rich")
    poor = await desk.tenant("poor", most_tokens=10)
    slow = await desk.tenant("slow", requests_per_minute=1)

    budget = await desk.ask("over-budget", poor)
    assert (budget.status_code, budget.json()["error"]["code"]) == (429, "insufficient_quota")
    assert (await desk.ask("in-time", slow, max_tokens=1)).status_code == 200
    rate = await desk.ask("too-often", slow)
    assert (rate.status_code, rate.json()["error"]["code"]) == (429, "rate_limit_exceeded")

    runs = asyncio.create_task(desk.ask("runs", rich, max_tokens=450))
    await desk.until_there("runs", 1)
    late = asyncio.create_task(desk.ask("late", rich, queue_timeout=1.0))
    await desk.until_there("late")
    other = await desk.ask("no-room", rich)
    assert other.status_code == 503
    chats = {"model": "nano", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    foreign = await desk.ask("foreign", rich, "/v1/messages", **chats)
    assert foreign.status_code in (503, 529)
    timeout = await late
    assert (timeout.status_code, timeout.json()["error"]["code"]) == (504, "queue_timeout")
    with pytest.raises(httpx.ReadTimeout):
        await desk.http.post(
            "/v1/completions",
            json=BODY,
            headers={"x-request-id": "left", **bearer(rich)},
            timeout=0.3,
        )
    bad = await desk.ask("bad", rich, max_tokens=-1)
    assert bad.status_code == 400
    assert (await runs).status_code == 200

    for name, answer, tenant, prompt_tokens in (
        ("over-budget", budget, "poor", 3),
        ("too-often", rate, "slow", 0),  # refused before its body was read
        ("no-room", other, "rich", 3),
    ):
        found = await desk.why(name)
        said(found, answer)
        assert (found["outcome"], found["tenant"]) == ("refused", tenant)
        assert (found["prompt_tokens"], found["completion_tokens"]) == (prompt_tokens, 0)
        assert ("admission" in found["causes"]) == (prompt_tokens > 0)
        assert found["endpoint"] == "/v1/completions"
    assert (await desk.why("foreign"))["endpoint"] == "/v1/messages"

    found = await desk.why("late")
    said(found, timeout)
    assert found["outcome"] == "error"
    waited = sum(found["causes"].get(cause, 0) for cause in ("turn", "rows", "engine"))
    assert 900 < waited < found["ms"]

    found = await desk.why("left")
    assert (found["outcome"], found["why"]["code"]) == ("abort", "client_gone")
    assert found["ms"] > 250

    parts = (await desk.why("runs"))["parts"]
    due = {(part["cause"], part["strategy"]) for part in parts}
    assert {("admission", ""), ("admission", "room")} <= due

    rows = (await desk.admin("GET", "/admin/requests?limit=50"))["requests"]
    errors = {row["id"]: (row["outcome"], row["error"]) for row in rows}
    assert errors["over-budget"] == ("refused", "insufficient_quota")
    assert errors["runs"] == ("length", "")
    assert "bad" not in errors
    arrived = [row["arrived"] + row["ms"] / 1000 for row in rows]
    assert arrived == sorted(arrived, reverse=True)
    await desk.http.aclose()


async def test_who_waits_for_a_model_in_vain_is_explained_after_a_restart_too(
    start_daemon: Any, tmp_path: Path
) -> None:
    socket = str(tmp_path / "admin.sock")
    settings = {"admin.socket": socket, "store.path": str(tmp_path / "store")}

    async def begin() -> Any:
        daemon = await asyncio.to_thread(
            start_daemon, env={"FAKE_LOAD_MS": "1500"}, wait=False, **settings
        )
        await asyncio.to_thread(daemon.wait_listening)
        return daemon

    daemon = await begin()
    desk = Desk(daemon.url, socket)
    answer = await desk.ask("early", "none", queue_timeout=0.3)
    assert answer.status_code == 504
    found = await desk.why("early")
    said(found, answer)
    assert found["outcome"] == "refused"
    assert found["causes"]["no_engine"] > 0.8 * found["ms"]
    await desk.http.aclose()

    await asyncio.to_thread(daemon.stop)
    await begin()
    assert await desk.why("early") == found, "another life of the daemon knows it as well"
