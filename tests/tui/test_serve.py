"""Console in a browser: over a real port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from gatewayd_tui.recording import line_of
from tests.tui.samples import snapshot


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def listening(port: int) -> None:
    for _ in range(1500):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.02)
    raise AssertionError("nobody listens")


@pytest.fixture
async def link(tmp_path: Path) -> AsyncIterator[str]:
    recording = tmp_path / "one.jsonl"
    recording.write_bytes(line_of(snapshot()))
    words = ["tui", "--serve", "--port", str(free_port()), "--snapshot", str(recording)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gatewayd", *words, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
        found = re.search(r"http://\S+", line)
        assert found, line
        await listening(int(found[0].partition("/?")[0].rpartition(":")[2]))
        yield found[0]
    finally:
        process.terminate()
        await process.wait()


async def test_the_link_shows_the_console_and_nothing_else_does(link: str) -> None:
    base = link.partition("/?")[0]
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as stranger:
        for path in ("/", "/ws", "/static/js/textual.js", "/?key=wrong"):
            async with stranger.get(base + path) as answer:
                assert answer.status == 403
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await stranger.ws_connect(base + "/ws")
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
        async with browser.get(link) as page:
            assert page.status == 200
            assert page.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
            assert base.replace("http", "ws", 1) + "/ws" in await page.text()
        cookies = [c for c in browser.cookie_jar]
        assert [(c["httponly"], c["samesite"]) for c in cookies] == [(True, "Strict")]
        other = base.rpartition(":")[0] + ":1"  # has the cookie: to browsers it is the same site
        for origin in (other, base + ".evil.test", "null", "", None):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await browser.ws_connect(f"{base}/ws", origin=origin)
            assert refused.value.status == 403
        async with browser.ws_connect(f"{base}/ws?width=100&height=30", origin=base) as screen:
            seen = ""
            while "Overview" not in seen:
                message = await asyncio.wait_for(screen.receive(), 30)
                data = message.data if isinstance(message.data, bytes) else b""
                seen += data.decode("utf-8", "replace")
            await screen.send_str(json.dumps(["stdin", "q"]))
