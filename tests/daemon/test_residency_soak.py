"""Residency soak: three real models in memory for two, under random traffic for ten minutes.

The sum of the engines' resident memory, read from /proc twice a second, never exceeds the budget,
and no request is lost or answered wrongly: each answer is that of the same request before.

``GATEWAYD_RESIDENCY_MINUTES=10 pytest -m slow tests/daemon/test_residency_soak.py -s`` prints what
was seen, swap times too; ``GATEWAYD_RESIDENCY=cost`` is about another strategy than ``lru``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import warm
from tests.daemon.conftest import Running
from tests.daemon.soak_faults import figure

MINUTES = float(os.environ.get("GATEWAYD_RESIDENCY_MINUTES", "10"))
STRATEGY = os.environ.get("GATEWAYD_RESIDENCY", "lru")
SERVE = ("-m", "gatewayd", "serve", "--port", "0")
MODELS = {"a": "embedded:nano", "b": "embedded:nano-draft", "c": "embedded:nano"}
WEIGHTS = (3, 2, 1)
MODEL_MIB, BUDGET_MIB = 440, 900
"""An engine of nano has 380 MiB and one of nano-draft 330: all three together exceed the budget."""
CLIENTS = 5
PAUSE_SECONDS = 1.5
"""Mean time between an answer and the next request of a client."""
TIMEOUT_SECONDS = 120.0
PROMPTS = [f"def function_{k}(value):\n" for k in range(6)]
LENGTHS = (8, 40, 160)


@dataclass
class Seen:
    """What happened.

    Attributes:
        answers: of each request by its model, prompt and length; the first one counts.
        ends: how requests ended.
        wrong: ends that must not be.
        most_mib: largest sum of the engines' resident memory.
        most_engines: largest number of engines that existed at the same time.
        most_held: largest memory that the daemon says loaded models hold, in bytes.
        num_samples: of memory.
        loads: the metrics' load seconds of each load, by model and number of the load.
        seconds: of each request that was answered.
    """

    answers: dict[tuple[str, str, int], str] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    most_mib: float = 0.0
    most_engines: int = 0
    most_held: float = 0.0
    num_samples: int = 0
    loads: dict[tuple[str, int], float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


def engines_of(daemon: int) -> dict[int, float]:
    """Resident MiB of each engine that is a child of the daemon and exists now."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            status = (folder / "status").read_text()
            command = (folder / "cmdline").read_bytes()
            parent = re.search(r"^PPid:\s+(\d+)", status, re.MULTILINE)
            rss = re.search(r"^VmRSS:\s+(\d+)", status, re.MULTILINE)  # a zombie has none
            if parent and rss and int(parent[1]) == daemon and b"gatewayd_engine" in command:
                found[int(folder.name)] = int(rss[1]) / 1024
    # One may end while the others are read: it did not exist together with the last of them.
    return {pid: mib for pid, mib in found.items() if Path(f"/proc/{pid}/exe").exists()}


async def ask(daemon: Running, client: Any, draw: random.Random, seen: Seen) -> None:
    """One request, to its end."""
    (model,) = draw.choices(list(MODELS), WEIGHTS)
    request = model, draw.choice(PROMPTS), draw.choice(LENGTHS)
    stream, began = draw.random() < 0.7, time.monotonic()
    try:
        asked = client.complete(daemon, request[1], request[2], model=model, stream=stream)
        answer = await asyncio.wait_for(asked, TIMEOUT_SECONDS)
    except (httpx.HTTPError, TimeoutError) as error:
        seen.ends["lost"] += 1
        seen.wrong.append(f"{request}: {error!r}")
        return
    if not answer.is_complete or answer.error is not None:
        seen.ends["failed"] += 1
        seen.wrong.append(f"{request}: {answer}")
    elif answer.text != seen.answers.setdefault(request, answer.text):
        seen.ends["another answer"] += 1
        seen.wrong.append(f"{request}: {answer}")
    else:
        seen.ends["complete"] += 1
        seen.seconds.append(time.monotonic() - began)


async def traffic(daemon: Running, client: Any, seed: int, until: float, seen: Seen) -> None:
    """A client's requests, one after the other."""
    draw = random.Random(seed)
    while time.monotonic() < until:
        await ask(daemon, client, draw, seen)
        await asyncio.sleep(draw.expovariate(1 / PAUSE_SECONDS))


async def sample_memory(daemon: Running, done: asyncio.Event, seen: Seen) -> None:
    while not done.is_set():
        engines = engines_of(daemon.process.pid)
        seen.num_samples += 1
        seen.most_mib = max(seen.most_mib, sum(engines.values()))
        seen.most_engines = max(seen.most_engines, len(engines))
        await asyncio.sleep(0.5)


async def sample_metrics(daemon: Running, done: asyncio.Event, seen: Seen) -> None:
    async with httpx.AsyncClient(timeout=60) as http:
        while not done.is_set():
            text = (await http.get(f"{daemon.url}/metrics")).text
            held = figure(text, "gatewayd_catalogue_memory_bytes", 'state="held"')
            seen.most_held = max(seen.most_held, held)
            for model in MODELS:
                label = f'model_name="{model}"'
                loads = int(figure(text, "gatewayd_model_loads_total", label))
                if loads and figure(text, "gatewayd_model_loaded", label):
                    load_seconds = figure(text, "gatewayd_model_load_seconds", label)
                    # Set a moment after the model is loaded: the last sample counts.
                    seen.loads[model, loads] = load_seconds
            await asyncio.sleep(0.5)


def swaps(events: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds from each decision to unload a model until the engine of the other is ready."""
    found: list[float] = []
    begun: dict[str, float] = {}
    for event in events:
        at = datetime.fromisoformat(event["timestamp"]).timestamp()
        if match := re.match(r"unloading the model \w+ for (\w+)", event["event"]):
            begun.setdefault(match[1], at)
        match = re.match(r"engine 0 of (\w+): ready", event["event"])
        if match and match[1] in begun:
            found.append(at - begun.pop(match[1]))
    return found


def spread(seconds: Sequence[float]) -> str:
    if not seconds:
        return "of none"
    ordered = sorted(seconds)
    p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return f"median {statistics.median(ordered):.2f} s, p95 {p95:.2f} s, of {len(ordered)}"


@pytest.mark.slow
@pytest.mark.timeout(7200)
async def test_ten_minutes_of_random_traffic_exceed_no_memory_and_lose_no_request(
    start_daemon: Callable[..., Running], client: Any, tmp_path: Path
) -> None:
    file = tmp_path / "models.toml"
    tables = [f'[models.{n}]\npath = "{p}"\nmemory = "{MODEL_MIB}MiB"\n' for n, p in MODELS.items()]
    file.write_text(
        f'[catalogue]\nmemory = "{BUDGET_MIB}MiB"\nminimum_residency_seconds = 3.0\n'
        f'[residency]\nstrategy = "{STRATEGY}"\n[engine]\nkv_memory = "32MiB"\nthreads = 1\n'
        + "".join(tables)
    )
    # Engines are started in the usual way: a forked one shares its memory, and loads sooner.
    env = {"GATEWAYD_CONFIG": str(file), "OMP_NUM_THREADS": "1", warm.COLD: "1"}
    daemon = start_daemon(SERVE, env=env)
    client.http.timeout = TIMEOUT_SECONDS
    seen, done, until = Seen(), asyncio.Event(), time.monotonic() + MINUTES * 60
    sampling = [
        asyncio.create_task(sample(daemon, done, seen))
        for sample in (sample_memory, sample_metrics)
    ]
    await asyncio.gather(*[traffic(daemon, client, seed, until, seen) for seed in range(CLIENTS)])
    done.set()
    await asyncio.gather(*sampling)
    text = (await client.http.get(f"{daemon.url}/metrics")).text
    unloads = figure(text, "gatewayd_model_unloads_total")
    status = daemon.stop()
    print(f"\n{MINUTES:g} min, {STRATEGY}: requests {dict(seen.ends)}")
    print(f"memory: at most {seen.most_mib:.0f} of {BUDGET_MIB} MiB in {seen.num_samples} samples;")
    print(f"  {seen.most_engines} engines at most; by the daemon {seen.most_held / 2**20:.0f} MiB")
    print(f"swaps: {unloads:.0f} unloads; from decision to ready {spread(swaps(daemon.events()))}")
    print(f"  loads by the metrics {spread(list(seen.loads.values()))}")
    print(f"latency of requests: {spread(seen.seconds)}")
    assert seen.wrong == []
    assert seen.most_mib <= BUDGET_MIB
    assert seen.most_held <= BUDGET_MIB << 20
    assert seen.most_engines == 2
    assert unloads >= 2 * MINUTES
    assert len(seen.answers) <= sum(seen.ends.values()) == seen.ends["complete"]
    assert status == 0
