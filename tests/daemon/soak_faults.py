"""Parts of the soak test: a faulty plugin, injected faults, resource usage of processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gatewayd.admin.client import AdminError, call
from gatewayd.http.schema.completion import CompletionRequest
from gatewayd.tracing.recent import REFUSED
from tests.daemon import heap_size
from tests.gatewayd.gateway import COMPLETION
from tests.gatewayd.http.schema.malformed_bodies import BROKEN_JSON, bad_fields, with_field

PLUGIN = """
import asyncio
import time
from soak_heap import held_bytes
from prometheus_client.core import GaugeMetricFamily
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyConfig, StrategyInfo
from gatewayd_sched_fcfs.config import FcfsConfig
from gatewayd_sched_fcfs.strategy import Fcfs


class Settings(StrategyConfig):
    hangs: bool = False


class Breaks(Fcfs):
    def __init__(self, config):
        super().__init__(FcfsConfig())
        self._hangs = config.hangs
        self._left = 40

    def plan(self, view):
        self._left -= 1
        if self._left < 0 and self._hangs:
            sum(range(10**13))
        if self._left % 20 == 0:
            raise ValueError("not today")
        return super().plan(view)


class Process:
    def describe(self):
        return []

    def collect(self):
        yield GaugeMetricFamily("soak_tasks", "Of the event loop.", value=len(asyncio.all_tasks()))
        yield GaugeMetricFamily("soak_held_bytes", "Allocated, and not freed.", value=held_bytes())


@hookimpl
def gatewayd_schedulers():
    return [StrategyInfo("breaks", Settings, Breaks, "Works for a while.")]


@hookimpl
def gatewayd_metrics(registry):
    registry.register(Process())
"""
TELLS = """
import os
import signal


def tell(number, frame):
    from soak_heap import held_bytes

    file = f"{os.path.dirname(__file__)}/held-{os.getpid()}"
    with open(f"{file}.new", "w") as new:
        new.write(str(held_bytes()))
    os.replace(f"{file}.new", file)


signal.signal(signal.SIGUSR2, tell)
"""
_SWAPS: tuple[tuple[str, str], ...] = (
    ("scheduler", "fcfs"),
    ("scheduler", "priority"),
    ("scheduler", "fair"),
    ("prefix_cache", "hash"),
    ("prefix_cache", "radix"),
    ("eviction", "lru"),
    ("eviction", "lfu"),
    ("drafter", "ngram"),
    ("drafter", "none"),
)
_NONSENSE = [
    *(with_field(COMPLETION, one) for one in bad_fields(CompletionRequest)),
    *BROKEN_JSON,
]


def installed(folder: Path) -> dict[str, str]:
    """A distribution with the plugin, and the environment that finds it.

    Every process of that environment tells on SIGUSR2 what it holds.
    """
    (folder / "soak_plugin.py").write_text(PLUGIN)
    (folder / "sitecustomize.py").write_text(TELLS)
    (folder / "soak_heap.py").write_text(Path(heap_size.__file__).read_text())
    info = folder / "soak_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: soak-plugin\nVersion: 1\n")
    points = "scheduler.breaks = soak_plugin\nobserver.soak = soak_plugin\n"
    (info / "entry_points.txt").write_text(f"[gatewayd]\n{points}")
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def figure(text: str, name: str, label: str = "") -> float:
    """The sum of a metric's samples whose labels hold a text."""
    found = re.findall(rf"^{name}(\{{.*\}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for labels, value in found if label in labels)


async def held_by(pid: int, folder: Path) -> float:
    """Bytes that a process has allocated and not freed.

    Raises:
        OSError: it is gone.
        TimeoutError: it did nothing for two seconds.
    """
    file = folder / f"held-{pid}"
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    async with asyncio.timeout(2):
        while not file.exists():
            await asyncio.sleep(0.02)
    return float(file.read_text())


@dataclass
class Held:
    """What a process holds.

    Attributes:
        kib: memory of its own, in KiB.
        files: descriptors.
        threads: running.
    """

    kib: int
    files: int
    threads: int

    @classmethod
    def by(cls, pid: int) -> Held:
        """Read it.

        Raises:
            OSError: it is gone.
        """
        status = Path(f"/proc/{pid}/status").read_text()
        kib = re.search(r"^RssAnon:\s+(\d+)", status, re.MULTILINE)
        threads = re.search(r"^Threads:\s+(\d+)", status, re.MULTILINE)
        if kib is None or threads is None:
            raise ProcessLookupError(pid)
        return cls(int(kib[1]), len(os.listdir(f"/proc/{pid}/fd")), int(threads[1]))


def slope(points: Iterable[tuple[float, float]]) -> float:
    """Theil and Sen's: the median of the slopes between pairs, which no spike moves."""
    some = list(points)
    some = some[:: max(1, len(some) // 200)]
    pairs = [(a, b) for i, a in enumerate(some) for b in some[i + 1 :] if b[0] > a[0]]
    return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs) if pairs else 0.0


@dataclass
class Faults:
    """Everything that may go wrong, by name.

    Attributes:
        daemon: which it happens to.
        admin: its admin socket.
        file: its configuration.
        done: how often each came.
    """

    daemon: Any
    admin: str
    file: Path
    done: dict[str, int] = field(default_factory=dict)
    last: float = 0.0

    def __post_init__(self) -> None:
        self._rng = random.Random(11)
        self._begins = self.file.read_text()
        self.hard: dict[str, Callable[[], Awaitable[None]]] = {
            "engine killed": self._kill,
            "engine stuck": self._stick,
            "plugin hangs": self._hang,
        }
        self.soft: dict[str, Callable[[], Awaitable[None]]] = {
            "plugin raises": self._raise,
            "client leaves": self._leave,
            "slow reader": self._read_slowly,
            "swap": self._swap,
            "reload": self._reload,
            "bad requests": self._send_nonsense,
            "half a request": self._send_half,
        }

    async def each(self) -> None:
        """Everything once: what is imported and kept for it is there from then on.

        Nonsense until as much is known of refused requests as can be.
        """
        for _ in range(REFUSED // len(_NONSENSE) + 1):
            await self._send(_NONSENSE)
        for cause in (*self.soft.values(), *(self._swap for _ in _SWAPS), *self.hard.values()):
            await cause()
        self.last = time.monotonic()

    def tell(self, level: str) -> None:
        """Change what the daemon logs."""
        self.file.write_text(f'{self._begins}\n[log]\nlevel = "{level}"\n')
        self.daemon.process.send_signal(signal.SIGHUP)

    async def one(self, *, may_be_hard: bool) -> None:
        """Cause one of them; those that cost an engine are one in eight."""
        kinds = self.hard if may_be_hard and self._rng.random() < 0.125 else self.soft
        name = self._rng.choice(sorted(kinds))
        self.done[name] = self.done.get(name, 0) + 1
        if kinds is self.hard:
            self.last = time.monotonic()
        await kinds[name]()
        if kinds is self.hard:
            self.last = time.monotonic()

    async def _admin(self, method: str, path: str, body: object) -> None:
        # Refused while an engine is away, or for good what is quarantined.
        with contextlib.suppress(AdminError):
            await asyncio.to_thread(call, self.admin, method, path, body)

    async def _engine(self) -> int | None:
        with contextlib.suppress(httpx.HTTPError):
            found: int | None = await asyncio.to_thread(lambda: self.daemon.engine_pid)
            return found
        return None

    async def _gone(self, pid: int) -> None:
        """Wait until there is another one."""
        async with asyncio.timeout(90):
            while await self._engine() in (None, pid) or not await self._is_ready():
                await asyncio.sleep(0.2)

    async def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return bool((await asyncio.to_thread(self.daemon.readyz))[0] == 200)
        return False

    async def _signal(self, number: int) -> None:
        pid = await self._engine()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            await self._gone(pid)

    async def _kill(self) -> None:
        await self._signal(signal.SIGKILL)

    async def _stick(self) -> None:
        await self._signal(signal.SIGSTOP)

    async def _hang(self) -> None:
        pid = await self._engine()
        await self._break(hangs=True)
        await asyncio.sleep(6)
        if pid is not None and await self._engine() != pid:
            await self._gone(pid)
        await self._admin("PUT", "/admin/strategies/scheduler", {"name": "fcfs"})

    async def _raise(self) -> None:
        await self._break(hangs=False)
        await asyncio.sleep(2)
        await self._admin("PUT", "/admin/strategies/scheduler", {"name": "fcfs"})

    async def _break(self, *, hangs: bool) -> None:
        body = {"name": "breaks", "settings": {"hangs": hangs}}
        await self._admin("PUT", "/admin/strategies/scheduler", body)

    async def _swap(self) -> None:
        kind, name = self._rng.choice(_SWAPS)
        await self._admin("PUT", f"/admin/strategies/{kind}", {"name": name})

    async def _reload(self) -> None:
        self.tell(self._rng.choice(["info", "warning", "loud"]))  # the last one is refused

    def _stream(self, tokens: int) -> dict[str, Any]:
        prompt = f"# number {self._rng.randrange(50)}\n"
        wish = {"max_tokens": tokens, "stream": True, "ignore_eos": True}
        return {"model": "nano", "prompt": prompt, **wish}

    async def _leave(self) -> None:
        for _ in range(4):
            with contextlib.suppress(httpx.HTTPError):
                async with (
                    httpx.AsyncClient(timeout=20) as http,
                    http.stream(
                        "POST", f"{self.daemon.url}/v1/completions", json=self._stream(400)
                    ) as stream,
                ):
                    async for _ in stream.aiter_lines():
                        break

    async def _raw(self, content: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        port = int(self.daemon.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(content)
        return reader, writer

    async def _read_slowly(self) -> None:
        body = httpx.Request("POST", "http://x/v1/completions", json=self._stream(600)).content
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        reader, writer = await self._raw(head.encode() + b"content-type: application/json\r\n\r\n")
        writer.write(body)
        for _ in range(40):
            await reader.read(64)
            await asyncio.sleep(0.05)
        writer.close()

    async def _send_half(self) -> None:
        _, writer = await self._raw(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-le")
        await asyncio.sleep(0.5)
        writer.close()

    async def _send_nonsense(self) -> None:
        await self._send(self._rng.sample(_NONSENSE, 20))

    async def _send(self, bodies: Iterable[bytes]) -> None:
        headers = {"content-type": "application/json"}
        async with httpx.AsyncClient(timeout=20) as http:
            for content in bodies:
                url = f"{self.daemon.url}/v1/completions"
                answer = await http.post(url, content=content, headers=headers)
                assert answer.status_code in (400, 503), answer.text
