"""Operators' commands in a daemon of several models: about one; requests are found in all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gatewayd.admin.client import AdminError, call
from gatewayd.cli import app
from tests.daemon.conftest import Running


async def test_commands_are_about_one_model_and_requests_are_found_in_all(
    start_daemon: Callable[..., Running], client: Any, tmp_path: Path
) -> None:
    socket = str(tmp_path / "admin.sock")
    daemon = start_daemon(
        env={"FAKE_STEP_MS": "10"},
        **{
            "admin.socket": socket,
            "models.a.path": "embedded:nano",
            "models.b.path": "embedded:nano-draft",
        },
    )

    async def run(*words: str) -> tuple[int, str]:
        runner = CliRunner()
        done = await asyncio.to_thread(runner.invoke, app, [*words, "--socket", socket])
        return done.exit_code, done.output

    def limits_of(model: str) -> Any:
        return call(socket, "GET", f"/admin/strategies?model={model}")["limits"]

    # A pause of the one leaves the other.
    assert (await run("pause", "--model", "b"))[0] == 0
    refused = await client.complete(daemon, "x", 2, stream=False, model="b")
    assert (refused.status, refused.error["code"]) == (503, "paused")
    assert (await client.complete(daemon, "x", 2, model="a")).is_complete
    assert await run("resume", "--model", "b") == (0, "b is ready\n")
    assert (await client.complete(daemon, "x", 2, model="b")).is_complete

    status, output = await run("swap", "router", "prefix", "--model", "b")
    assert (status, "router is prefix now" in output) == (0, True), output
    assert "replaced" in (await run("strategies", "--model", "b"))[1]
    assert "replaced" not in (await run("strategies"))[1]

    call(socket, "PATCH", "/admin/limits?model=b", {"max_waiting_requests": 7})
    assert limits_of("b")["max_waiting_requests"] == 7
    assert limits_of("a")["max_waiting_requests"] != 7

    status, output = await run("strategies", "--model", "c")
    assert (status, "the model 'c' does not exist; served: a, b" in output) == (1, True)

    assert (await run("top", "--once"))[1].startswith("a, of 2 models  ready")
    assert (await run("top", "--once", "--model", "b"))[1].startswith("b, of 2 models  ready")
    status, output = await run("top", "--once", "--model", "c")
    assert (status, "the model 'c' does not exist; served: a, b" in output) == (1, True)

    # In flight at the second model; no command names it.
    client.http.headers["x-request-id"] = "mine/1"
    long = asyncio.create_task(client.complete(daemon, "x", 500, model="b"))
    for _ in range(300):
        try:
            found = await asyncio.to_thread(call, socket, "GET", "/admin/requests/mine%2F1")
            break
        except AdminError:
            await asyncio.sleep(0.01)
    assert found["outcome"] == "running"
    assert (await run("explain", "mine/1"))[1].startswith("mine/1  /v1/completions")
    assert (await run("request", "bump", "mine/1"))[0] == 0
    status, output = await run("request", "cancel", "mine/1")
    assert (status, output) == (0, "request mine/1 is cancelled\n")
    ended = await long
    assert ended.error["code"] == "cancelled"
    with pytest.raises(AdminError, match="no request 'mine/1' is running or waiting"):
        await asyncio.to_thread(call, socket, "POST", "/admin/requests/mine%2F1/cancel")
    # It has ended, and is found as that of any model.
    assert (await run("explain", "mine/1"))[0] == 0
    # The first was refused, since its model was paused.
    listings = {"": ["b", "b", "a", "b"], "?model=a": ["a"], "?model=b": ["b", "b", "b"]}
    for path, models in listings.items():
        listed = await asyncio.to_thread(call, socket, "GET", f"/admin/requests{path}")
        assert [row["model"] for row in listed["requests"]] == models, listed
    snapshot = await asyncio.to_thread(call, socket, "GET", "/admin/snapshot?model=a")
    assert [one["count"] for one in snapshot["latencies"]] == [1, 1, 1]
    status, output = await run("explain", "--model", "a")
    assert (status, "mine/1" in output) == (0, False)
    assert "mine/1" in (await run("explain", "--model", "b"))[1]
