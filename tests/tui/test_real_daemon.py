"""Console on a real daemon: true display, effective actions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from gatewayd_tui.app import Console
from gatewayd_tui.client import DaemonSource
from tests.tui.conftest import text_of, until
from tests.tui.pictures import daemon


async def ask(session: aiohttp.ClientSession, url: str, name: str, tokens: int) -> tuple[int, Any]:
    body = {"model": "nano", "prompt": "def", "max_tokens": tokens, "ignore_eos": True}
    headers = {"x-request-id": name}
    async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def status_of(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url) as answer:
        return answer.status


async def test_what_an_operator_does_happens(tmp_path: Path) -> None:
    async with daemon(tmp_path) as (url, socket), aiohttp.ClientSession() as session:
        console = Console(DaemonSource(socket), interval=0.25)
        async with console.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda: "● ready" in text_of(console))

            await pilot.press("3")
            long = asyncio.create_task(ask(session, url, "the-long-one", 1900))
            await until(pilot, lambda: "▶ decode" in text_of(console))
            assert "the-long-one" in text_of(console)

            await pilot.press("h")
            await until(pilot, lambda: "the-long-one" not in text_of(console))
            await pilot.press("2")
            await until(pilot, lambda: "‖ held" in text_of(console))

            await pilot.press("u", "3")
            await until(pilot, lambda: "the-long-one" in text_of(console))
            await pilot.press("c")
            await until(pilot, lambda: "cancel request the-long-one" in text_of(console))
            await pilot.press("y")
            status, answer = await long
            assert status == 503
            assert answer["error"]["code"] == "cancelled"
            await until(pilot, lambda: "the-long-one" not in text_of(console))

            await pilot.press("w")
            await until(pilot, lambda: "the-long-one  /v1/completions" in text_of(console))
            assert "\n held by operator " in text_of(console)

            await pilot.press("1", "a", "y")
            await until(pilot, lambda: "‖ paused" in text_of(console))
            status, answer = await ask(session, url, "the-late-one", 1)
            assert status == 503
            assert await status_of(session, f"{url}/readyz") == 503
            await pilot.press("r")
            await until(pilot, lambda: "● ready" in text_of(console))
            assert (await ask(session, url, "the-short-one", 1))[0] == 200

            await pilot.press("D", "y")
            await until(pilot, lambda: "✖ lost" in text_of(console))
            assert "the daemon at" in text_of(console) or "no daemon" in text_of(console)
