"""Benchmark: engine throughput with a console polling at 4 Hz, against none.

First the engine alone, in this process: the same steps with a look at everything every quarter of a
second, and without. Then a whole daemon under a steady load, with a stream of snapshots open and
with none, by turns: tokens are those that its engine has counted. Where two cores are all there is,
rates scatter by a tenth, so what snapshots cost is told in the daemon's processor time, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

import httpx

from gatewayd_engine.core.engine_core import EngineCore
from gatewayd_engine.process.inspect_messages import Inspect
from tests.bench import report, servers
from tests.bench.in_process_engine import Drive, Job, make_core

AT_LEAST = 0.99
AT_MOST = 0.01
"""Of all cores."""
HERTZ = 4
BATCH = 16
STEPS = 200
TOKENS = 1000
_TOKENS = "gatewayd_engine_computed_tokens_total{"
_READ_BYTES = 1 << 16


# The engine alone


def speed(core: EngineCore, drive: Drive, *, watched: bool) -> float:
    """Tokens a second of a batch that decodes."""
    begin = due = time.perf_counter()
    for _ in range(STEPS):
        now = time.perf_counter()
        if watched and now >= due:
            due += 1 / HERTZ
            core.inspect(Inspect(1))
        drive.step()
    return STEPS * BATCH / (time.perf_counter() - begin)


def engine_alone(rounds: int) -> tuple[list[float], list[float]]:
    """Speeds without and with somebody who looks."""
    plain: list[float] = []
    watched: list[float] = []
    for turn in range(rounds):
        for looks in (False, True) if turn % 2 else (True, False):
            core = make_core(max_running=BATCH)
            drive = Drive(core)
            for index in range(BATCH):
                drive.submit(Job([300 + index] * 16, STEPS + 8))
            for _ in range(4):
                drive.step()
            (watched if looks else plain).append(speed(core, drive, watched=looks))
            core.strategies.close()
    return plain, watched


def look_seconds() -> float:
    """Of one look at a full batch of the embedded model."""
    core = make_core(max_running=BATCH)
    drive = Drive(core)
    for index in range(BATCH):
        drive.submit(Job([300 + index] * 512, 8))
    drive.step()
    took = []
    for _ in range(50):
        begin = time.perf_counter()
        core.inspect(Inspect(1))
        took.append(time.perf_counter() - begin)
    core.strategies.close()
    return report.median(took)


# A whole daemon


@contextmanager
def daemon() -> Iterator[tuple[str, str]]:
    """Its URL and its admin socket."""
    with tempfile.TemporaryDirectory() as folder:
        path, file = Path(folder) / "admin.sock", Path(folder) / "g.toml"
        file.write_text(f'[admin]\nsocket = "{path}"\n[engine]\nmax_running = {BATCH}\n')
        port, env = servers.free_port(), {"GATEWAYD_CONFIG": str(file), "XDG_STATE_HOME": folder}
        log = Path(folder) / "daemon.log"
        with servers.serving(servers.gatewayd(port), port, log, path="/readyz", env=env) as url:
            yield url, str(path)


@asynccontextmanager
async def loaded(http: httpx.AsyncClient) -> AsyncIterator[None]:
    """Keep its batch full, of sequences of all lengths: together they would be slow by turns."""

    async def client(number: int) -> None:
        body = {"model": "nano", "temperature": 0, "ignore_eos": True}
        for length in chain([TOKENS * (number + 1) // BATCH], repeat(TOKENS)):
            asked = {**body, "prompt": [300 + number] * 16, "max_tokens": length}
            answer = await http.post("/v1/completions", json=asked)
            answer.raise_for_status()

    clients = [asyncio.create_task(client(number)) for number in range(BATCH)]
    try:
        yield
    finally:
        for one in clients:
            one.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


@asynccontextmanager
async def watcher(path: str) -> AsyncIterator[list[int]]:
    """A reader of the stream; counts what it was sent."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(f"GET /admin/stream?interval={1 / HERTZ} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    seen = [0]

    async def read() -> None:
        while data := await reader.read(_READ_BYTES):
            seen[0] += data.count(b"data: {")

    reading = asyncio.create_task(read())
    try:
        yield seen
    finally:
        reading.cancel()
        writer.close()


async def computed(http: httpx.AsyncClient) -> float:
    """Tokens that the engine has counted, as of its last step."""
    lines = (await http.get("/metrics")).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(_TOKENS))


async def pid_of(path: str) -> int:
    """The daemon's, by its admin socket."""
    transport = httpx.AsyncHTTPTransport(uds=path)
    async with httpx.AsyncClient(transport=transport, base_url="http://admin") as admin:
        return int((await admin.get("/admin/snapshot")).json()["daemon"]["pid"])


def cpu_seconds(pid: int) -> float:
    """Of a process, on all cores."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def rate(http: httpx.AsyncClient, seconds: float) -> float:
    """Tokens a second."""
    begin, before = time.perf_counter(), await computed(http)
    await asyncio.sleep(seconds)
    return (await computed(http) - before) / (time.perf_counter() - begin)


class Whole(NamedTuple):
    """Of a daemon without a watcher, and with one.

    Attributes:
        rates: tokens a second, by round.
        cpu: seconds of the processors that the daemon takes in a second, engines left out.
        snapshots: that the watcher got.
    """

    rates: tuple[list[float], list[float]]
    cpu: tuple[list[float], list[float]]
    snapshots: int


async def whole(rounds: int, seconds: float) -> Whole:
    """Run it.

    Raises:
        RuntimeError: the watcher got fewer snapshots than it asked for.
    """
    rates: tuple[list[float], list[float]] = [], []
    cpu: tuple[list[float], list[float]] = [], []
    snapshots = 0
    with daemon() as (url, path):
        async with httpx.AsyncClient(base_url=url, timeout=600) as http, loaded(http):
            await asyncio.sleep(3.0)
            pid = await pid_of(path)
            for turn in range(rounds):
                for looks in (False, True) if turn % 2 else (True, False):
                    async with contextlib.AsyncExitStack() as stack:
                        seen = await stack.enter_async_context(watcher(path)) if looks else [0]
                        begin, before = time.perf_counter(), cpu_seconds(pid)
                        rates[looks].append(await rate(http, seconds))
                        spent = cpu_seconds(pid) - before
                        cpu[looks].append(spent / (time.perf_counter() - begin))
                        snapshots += seen[0]
    if snapshots < 0.8 * rounds * seconds * HERTZ:
        raise RuntimeError(f"the watcher got {snapshots} snapshots; the machine is too busy")
    return Whole(rates, cpu, snapshots)


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each half of a round")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    where = report.machine()
    alone = engine_alone(args.rounds)
    found = asyncio.run(whole(args.rounds, args.seconds))
    findings = []
    for what, without, beside in (("engine", *alone), ("daemon", *found.rates)):
        ratios = [b / a for a, b in zip(without, beside, strict=True)]
        middle = report.median(without)
        findings.append(
            report.Finding(
                f"{what} with a watcher at {HERTZ} Hz, median of pairs",
                "tok/s",
                middle * report.median(ratios),
                middle,
                "without one",
                AT_LEAST,
            )
        )
    taken = report.median(found.cpu[True]) - report.median(found.cpu[False])
    findings.append(
        report.Finding(
            "the daemon's processor time for a watcher",
            "ms/s",
            1000 * taken,
            1000.0 * (os.cpu_count() or 1),
            "all cores",
            AT_MOST,
            "<=",
        )
    )
    details = {
        "look_ms": 1000 * look_seconds(),
        "snapshots": found.snapshots,
        "engine": {"plain": alone[0], "watched": alone[1]},
        "daemon": {"plain": found.rates[False], "watched": found.rates[True]},
        "cpu": {"plain": found.cpu[False], "watched": found.cpu[True]},
    }
    return report.publish(
        *("What a console costs", where, findings),
        as_json=args.json,
        strict=args.strict,
        details=details,
    )


if __name__ == "__main__":
    sys.exit(main())
