"""Request ids: gateway's and client's id on all log lines of daemon and engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from gatewayd.admin.client import call
from tests.daemon.conftest import Running, nano_daemon

BODY = {"model": "nano", "prompt": [7, 8, 9], "max_tokens": 4, "ignore_eos": True}


def of(daemon: Running, word: str) -> list[dict[str, Any]]:
    """Lines that ``grep`` finds."""
    return [line for line in daemon.events() if word in str(line)]


async def until_ended(daemon: Running, ours: str) -> list[dict[str, Any]]:
    """Lines of a request, when the engine has said that it has ended and the daemon that it is."""
    async with asyncio.timeout(30):
        while True:
            lines = of(daemon, ours)
            said = str(lines)
            if "answered with status" in said and ("finished" in said or "removed" in said):
                return lines
            await asyncio.sleep(0.02)


async def test_grep_finds_a_request_in_daemon_and_engine(tmp_path: Path) -> None:
    socket = str(tmp_path / "admin.sock")
    env = {"GATEWAYD_LOG__LEVEL": "debug", "GATEWAYD_ADMIN__SOCKET": socket}
    env["GATEWAYD_LOG__FORMAT"] = "json"
    env["XDG_STATE_HOME"] = str(tmp_path)
    with nano_daemon(tmp_path, **env) as daemon:
        async with httpx.AsyncClient(base_url=daemon.url, timeout=30) as http:

            async def ask(name: str | None, **fields: object) -> httpx.Response:
                headers = {} if name is None else {"x-request-id": name}
                return await http.post("/v1/completions", json={**BODY, **fields}, headers=headers)

            names = [f"mine/{at}" for at in range(6)]
            answers = await asyncio.gather(*(ask(name) for name in names))
            assert [answer.headers["x-request-id"] for answer in answers] == names
            unnamed = await ask(None)
            bad = await ask("bad", max_tokens=-1)
            assert bad.status_code == 400
        seen = set()
        for name in names:
            found = await asyncio.to_thread(call, socket, "GET", f"/admin/requests/{name}")
            ours = found["request_id"]
            lines = await until_ended(daemon, ours)
            assert len(of(daemon, name)) == len(lines), "the same lines by either id"
            for line in lines:
                assert (line["request_id"], line["x_request_id"]) == (ours, name)
            assert {"engine" in line for line in lines} == {True, False}
            seen.add(ours)
        assert len(seen) == 6
        ours = unnamed.headers["x-request-id"]
        lines = await until_ended(daemon, ours)
        assert all(line["request_id"] == ours for line in lines)
        assert not any("x_request_id" in line for line in lines)
        (line,) = of(daemon, "'bad'")
        assert line["request_id"].startswith("req_")
        assert "answered with status 400" in line["event"]
        told = await asyncio.to_thread(call, socket, "GET", "/admin/snapshot")
        kept = [line for line in told["logs"] if line["x_request_id"] == "bad"]
        assert [one["request_id"] for one in kept] == [line["request_id"]]
        others = [line for line in daemon.events() if "listening on" in line["event"]]
        assert not any("request_id" in line for line in others)
