"""Random kills: clients that never stop sending lose nothing silently.

What must hold after each: no client hangs, no request that had not begun is lost, every stream
that had begun ends with an error event, and the same prompt gives the same answer as before.
``pytest -m slow tests/daemon/test_random_kills.py -s`` runs twenty and prints the recovery times.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

NANO = ("-m", "gatewayd", "serve", "--port", "0")
CLIENTS = 12
PROMPTS = [f"def function_{k}(" for k in range(6)]
TOKENS = 24


@dataclass
class Tally:
    """How requests ended."""

    complete: int = 0
    broken: int = 0
    wrong: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)


async def _send_for_ever(
    client: Any, daemon: Any, expected: dict[str, str], tally: Tally, stop: asyncio.Event, seed: int
) -> None:
    rng = random.Random(seed)
    while not stop.is_set():
        prompt, stream = rng.choice(PROMPTS), rng.random() < 0.7
        answer = await asyncio.wait_for(
            client.complete(daemon, prompt, TOKENS, stream=stream), timeout=60
        )
        if answer.error is not None:
            has_begun = stream and bool(answer.num_chunks)
            if not has_begun or answer.error["code"] != "engine_restarted":
                tally.wrong.append(f"{prompt} {answer}")
            tally.broken += 1
        elif not answer.is_complete or answer.text != expected[prompt]:
            tally.wrong.append(f"{prompt} {answer}")
        else:
            tally.complete += 1


async def _campaign(daemon: Any, client: Any, kills: int) -> Tally:
    expected = {p: (await client.complete(daemon, p, TOKENS)).text for p in PROMPTS}
    tally, stop, rng = Tally(), asyncio.Event(), random.Random(7)
    senders = [
        asyncio.create_task(_send_for_ever(client, daemon, expected, tally, stop, seed))
        for seed in range(CLIENTS)
    ]
    for _ in range(kills):
        await asyncio.sleep(rng.uniform(0.2, 1.5))
        killed = await asyncio.to_thread(daemon.kill_engine)
        began = time.monotonic()
        async with asyncio.timeout(60):
            while True:
                status, body = await asyncio.to_thread(daemon.readyz)
                if status == 200 and body["replicas"][0]["pid"] != killed:
                    break
                await asyncio.sleep(0.02)
        tally.recoveries.append(time.monotonic() - began)
    stop.set()
    await asyncio.gather(*senders)
    return tally


async def _run(start_daemon: Callable[..., Any], client: Any, kills: int) -> None:
    daemon = start_daemon(NANO, env={"GATEWAYD_ENGINE__THREADS": "1"})
    tally = await _campaign(daemon, client, kills)
    recovery = (
        f"median {statistics.median(tally.recoveries):.2f} s, most {max(tally.recoveries):.2f} s"
    )
    print(
        f"\n{kills} kills: {tally.complete} requests served, {tally.broken} streams ended by an "
        f"error event, recovery {recovery}"
    )
    assert tally.wrong == []
    assert tally.complete > kills
    assert daemon.readyz()[1]["replicas"][0]["restarts"] == kills
    assert daemon.stop() == 0


async def test_three_kills_under_load_lose_nothing(
    start_daemon: Callable[..., Any], client: Any
) -> None:
    await _run(start_daemon, client, 3)


@pytest.mark.slow
async def test_twenty_kills_under_load_lose_nothing(
    start_daemon: Callable[..., Any], client: Any
) -> None:
    await _run(start_daemon, client, 20)
