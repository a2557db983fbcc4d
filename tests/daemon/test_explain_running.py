"""Running requests: explained so far, consistent with the final explanation."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatewayd.admin.client import AdminError, call


async def test_what_waits_and_what_runs_is_told_so_far(start_daemon: Any, tmp_path: Path) -> None:
    socket = str(tmp_path / "admin.sock")
    daemon = await asyncio.to_thread(
        start_daemon,
        env={"FAKE_STEP_MS": "20", "FAKE_MAX_RUNNING": "1"},
        **{"admin.socket": socket},
    )

    async def explain(name: str) -> Any:
        return await asyncio.to_thread(call, socket, "GET", f"/admin/requests/{name}")

    body = {"model": "nano", "prompt": [7, 8, 9], "max_tokens": 60, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=daemon.url, timeout=30) as http:

        async def ask(name: str) -> httpx.Response:
            return await http.post("/v1/completions", json=body, headers={"x-request-id": name})

        with pytest.raises(AdminError, match="runs, or has ended"):
            await explain("first")
        first = asyncio.create_task(ask("first"))
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(AdminError):
                    if (await explain("first"))["completion_tokens"]:
                        break
                await asyncio.sleep(0.01)
        second = asyncio.create_task(ask("second"))
        await asyncio.sleep(0.3)
        one, other = await explain("first"), await explain("second")
        later = await explain("second")
        assert (await first).status_code == (await second).status_code == 200
        ended = await explain("second")
    for found in (one, other, later):
        assert found["outcome"] == "running"
        assert sum(part["ms"] for part in found["parts"]) == pytest.approx(found["ms"], abs=0.01)
    assert 0 < one["completion_tokens"] < 60
    assert (other["completion_tokens"], other["ttft_ms"]) == (0, None)
    assert 250 < other["ms"] < later["ms"] < ended["ms"]
    assert ended["outcome"] == "length"
    assert ended["completion_tokens"] == 60
