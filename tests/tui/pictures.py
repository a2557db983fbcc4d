"""Screenshots of the console over a real daemon under load (``make pictures``).

    python tests/tui/pictures.py docs/pictures

It starts a daemon on the embedded model with few rows, three tenants and more requests than it can
serve, follows it with a console, and saves each screen as SVG.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from gatewayd_tui.app import Console
from gatewayd_tui.client import DaemonSource
from gatewayd_tui.screens import SCREENS

SIZE = (120, 34)
SECONDS = 30
TENANTS = {"acme": 2.0, "globex": 1.0, "initech": 0.5}
CONFIG = """
[server]
port = 0
[engine]
max_running = 6
kv_pages = 700
[scheduler]
strategy = "slo"
[store]
path = "{folder}/store"
[admin]
socket = "{folder}/admin.sock"
[slo.realtime]
ttft_ms = 2000
tpot_ms = 80
[slo.standard]
ttft_ms = 3000
"""
QUESTIONS = ["What does shutil.copytree do?", "How is a file opened?", "What is a deque for?"]


@contextlib.asynccontextmanager
async def daemon(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """A daemon with the configuration above: where clients go, and its socket."""
    config = folder / "gatewayd.toml"
    await asyncio.to_thread(config.write_text, CONFIG.format(folder=folder))
    words = ["-m", "gatewayd", "serve", "--config", str(config)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        url = ""
        async for line in process.stderr:
            text = line.decode()
            print(text, end="", file=sys.stderr)
            if "ready after" in text:
                url = text.partition(" at ")[2].partition(",")[0]
                break
        reading = asyncio.create_task(process.stderr.read())
        yield url, str(folder / "admin.sock")
        reading.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):  # it was drained
            process.terminate()
        await process.wait()


async def keys_of(source: DaemonSource) -> dict[str, str]:
    """A secret for each tenant, which is made."""
    secrets = {}
    for tenant, weight in TENANTS.items():
        terms = {"weight": weight, "concurrency": 24, "tokens_per_minute": 200_000}
        await source.call("POST", "/admin/tenants", {"tenant": tenant, "terms": terms})
        made = await source.call("POST", "/admin/keys", {"tenant": tenant, "name": "pictures"})
        secrets[tenant] = made["secret"]
    return secrets


async def client(session: aiohttp.ClientSession, url: str, key: str, seed: int) -> None:
    """Asks one question after the other."""
    dice = random.Random(seed)
    while True:
        words = " ".join(dice.choice(QUESTIONS) for _ in range(dice.randint(1, 40)))
        body = {
            "model": "nano",
            "messages": [
                {"role": "system", "content": "You know Python's standard library. " * 8},
                {"role": "user", "content": words},
            ],
            "max_tokens": dice.randint(40, 300),
            "ignore_eos": True,
            "service_tier": dice.choice(["auto", "auto", "flex", "priority"]),
        }
        headers = {"authorization": f"Bearer {key}"}
        async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as got:
            if got.status != 200:
                print(got.status, await got.text(), file=sys.stderr)
                await asyncio.sleep(1)
            await got.read()


async def take(console: Console, folder: Path) -> None:
    """Each screen, as it is a moment after it was opened."""
    async with console.run_test(size=SIZE) as pilot:
        await asyncio.sleep(SECONDS)
        for screen in SCREENS:
            await pilot.press(screen.KEY)
            await asyncio.sleep(1.5)
            await pilot.press("down")
            await asyncio.sleep(0.5)
            if screen.NAME == "explain":
                await pilot.press("o")  # the slowest
                await asyncio.sleep(0.5)
            picture = console.export_screenshot(title=f"gatewayd tui: {screen.TITLE}")
            (folder / f"{screen.NAME}.svg").write_text(picture)


async def main(out: Path) -> None:
    """See above."""
    with tempfile.TemporaryDirectory() as folder:
        async with daemon(Path(folder)) as (url, socket), aiohttp.ClientSession() as session:
            source = DaemonSource(socket)
            secrets = await keys_of(source)
            clients = [
                asyncio.create_task(client(session, url, secrets[tenant], seed))
                for seed, tenant in enumerate([*TENANTS] * 4)
            ]
            await take(Console(DaemonSource(socket)), out)
            for each in clients:
                each.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
            await source.close()


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    asyncio.run(main(Path(sys.argv[1])))
