"""Engine memory: constant over 150,000 requests of all kinds.

Where ``test_soak`` has faults that end engines, this one lives to the end. The daemon is not there:
requests come straight over the engine's socket, and something is done to it all the while. What is
judged is what it holds after it has given back: malloc keeps what a large step has used until
enough grammars have gone, some MiB more or less, and that says nothing of what is kept for good.

``GATEWAYD_ENGINE_REQUESTS=150000 pytest -m slow tests/daemon/test_engine_memory.py -s`` prints what
was seen; ``GATEWAYD_ENGINE_MODEL=nano-draft`` takes a fraction of the time.
"""

from __future__ import annotations

import os
import time

import msgspec
import pytest

from gatewayd.config.tables import Config
from gatewayd.engines.replicas.launch import engine_config
from gatewayd_engine.model import embedded
from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from tests.daemon.engine_traffic import Traffic
from tests.daemon.random_engine_requests import KINDS
from tests.daemon.soak_faults import Held, slope

REQUESTS = int(os.environ.get("GATEWAYD_ENGINE_REQUESTS", "150000"))
MODEL = os.environ.get("GATEWAYD_ENGINE_MODEL", "nano")
WARM = 0.3
"""Part of the requests after which all pages, buffers and caches have been in use."""
LOOK_EVERY, LOOKS = 250, 20
"""Requests between two looks, and looks of which the lowest counts."""
MIB_PER_100_000 = 1.0
MANY = 50_000
"""Requests from which on growth can be told from the heap's steps."""
MIB_AT_ONCE = 16.0
PAGES = 130
"""Few: all of them are in memory soon, and sequences are put out for others."""


def config() -> EngineConfig:
    """As the daemon starts it, but small."""
    return msgspec.structs.replace(
        engine_config(Config()),
        model=str(embedded.folder(MODEL)),
        kv_pages=PAGES,
        threads=1,
        max_running=64,
        max_batch_tokens=512,
        eviction=StrategyChoice("retention"),
        log_level="error",
    )


def growth(points: list[tuple[float, float]]) -> tuple[float, float]:
    """MiB in 10^5 requests after what warms up, of the lowest of some looks; and those requests."""
    lows = [min(points[i : i + LOOKS], key=lambda p: p[1]) for i in range(0, len(points), LOOKS)]
    later = lows[int(len(lows) * WARM) :]
    return slope(later) * 100_000 / 1024, points[-1][0] - later[0][0]


@pytest.mark.slow
@pytest.mark.timeout(7200)
async def test_an_engine_does_not_grow_with_what_it_has_served() -> None:
    traffic, points = Traffic(), list[tuple[float, float]]()
    process = await traffic.start(config(), {"OMP_NUM_THREADS": "1"})
    began = time.monotonic()
    while traffic.count < REQUESTS and not traffic.wrong:
        await traffic.more(LOOK_EVERY)
        points.append((float(traffic.count), float(Held.by(process.pid).kib)))
        if len(points) % LOOKS == 0:
            low = min(kib for _, kib in points[-LOOKS:]) / 1024
            seconds = time.monotonic() - began
            print(f"{traffic.count} requests, {seconds:.0f} s: {low:.1f} MiB at least", flush=True)
    assert traffic.wrong == []
    stats = await traffic.idle()
    by, seen = growth(points)
    print(f"{by:+.2f} MiB in 10^5 requests, from {seen:.0f}")
    print(f"ends: {dict(sorted(traffic.ends.items()))}")
    print(f"actions: {dict(traffic.asking.actions)}")
    print(f"{stats.preemptions} preemptions, {stats.swaps} swapped; {stats.evictions} evictions")

    assert {kind for kind, _ in traffic.ends} == set(KINDS)
    assert stats.held_pages == 0
    assert stats.faults == 0
    assert by <= MIB_PER_100_000 or (seen < MANY and by * seen / 100_000 < MIB_AT_ONCE)
    assert await traffic.stop(process) == 0
