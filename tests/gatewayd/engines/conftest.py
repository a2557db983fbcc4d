"""Fixtures: a fleet over fake engine processes, and recording sinks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gatewayd.engines.api import EngineRequest
from gatewayd.engines.backlog import QueueLimits
from gatewayd.engines.fleet import EngineFleet
from gatewayd.engines.replicas.setup import Launch
from gatewayd.engines.replicas.silence_limits import SilenceLimits
from gatewayd.errors import GatewayError
from gatewayd.plugins.router import FencedRouter
from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_engine.process.messages import SamplingParams, TokenLogprobs
from gatewayd_hooks.execution import EngineCommand
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.routing import ReplicaView, RouteRequest, RouterStrategy

FAKE_ENGINE = Path(__file__).parents[2] / "daemon" / "fake_engine.py"
CONFIG = EngineConfig(
    model="none",
    scheduler=StrategyChoice("fcfs"),
    prefix_cache=None,
    eviction=StrategyChoice("lru"),
    preemption=StrategyChoice("recompute"),
)


class LocalProcess:
    """A child process and our end of its socket."""

    def __init__(self, process: subprocess.Popen[bytes], stream: socket.socket) -> None:
        self.process = process
        self.socket = stream
        self.pid = process.pid
        self.aborted = False

    def poll(self) -> int | None:
        return self.process.poll()

    def terminate(self) -> None:
        self.process.terminate()

    def abort(self) -> None:
        self.aborted = True
        self.process.send_signal(6)

    def kill(self) -> None:
        self.process.kill()


class LocalExecutor:
    """Starts children, and remembers them."""

    def __init__(self) -> None:
        self.started: list[LocalProcess] = []
        self.failures = 0
        self.failure: Exception = OSError("no such place")

    def open(self, resources: GatewayResources) -> None:
        pass

    def close(self) -> None:
        pass

    def start(self, command: EngineCommand) -> LocalProcess:
        if self.failures:
            self.failures -= 1
            raise self.failure
        ours, theirs = socket.socketpair()
        argv = [part.replace("{fd}", str(theirs.fileno())) for part in command.argv]
        with theirs:
            process = subprocess.Popen(
                argv,
                env={**os.environ, **command.env},
                pass_fds=[theirs.fileno()],
            )
        self.started.append(LocalProcess(process, ours))
        return self.started[-1]


class LeastLoaded:
    """The simplest total router."""

    def open(self, resources: GatewayResources) -> None:
        pass

    def close(self) -> None:
        pass

    def route(self, request: RouteRequest, replicas: Sequence[ReplicaView]) -> int:
        return min(replicas, key=lambda view: view.num_running + view.num_waiting).index


@dataclass
class Sink:
    """Writes down every call, in order; ``end`` resolves with the last one."""

    name: str = ""
    on_tokens: Callable[[Sink], None] | None = None
    calls: list[str] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    error: GatewayError | None = None
    reason: str | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def admitted(self, cached_tokens: int, queue_seconds: float) -> None:
        self.calls.append("admitted")

    def computed(self, tokens: int) -> None:
        self.reached.append(tokens)

    def preempted(self) -> None:
        self.calls.append("preempted")

    def prompt_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> None:
        self.calls.append("prompt_logprobs")

    def pooled(self, count: int, vector: bytes) -> None:
        self.calls.append("pooled")

    def tokens(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> None:
        self.calls.append("tokens")
        self.ids += ids
        self.logprobs += logprobs or ()
        if self.on_tokens is not None:
            self.on_tokens(self)

    def restarted(self) -> None:
        self.calls.append("restarted")
        self.ids.clear()

    def finished(self, reason: str, stop_token: int | None) -> None:
        self.calls.append("finished")
        self.reason = reason
        self.over.set()

    def failed(self, error: GatewayError) -> None:
        self.calls.append("failed")
        self.error = error
        self.over.set()

    async def end(self, seconds: float = 30) -> Sink:
        await asyncio.wait_for(self.over.wait(), seconds)
        return self


def request(
    prompt: Sequence[int],
    max_tokens: int = 5,
    *,
    retry_started: bool = False,
    logprobs: int = -1,
    has_other_target: bool = False,
) -> EngineRequest:
    """A request for ``max_tokens`` tokens."""
    params = SamplingParams(
        max_tokens=max_tokens, temperature=0.0, logprobs=None if logprobs < 0 else logprobs
    )
    return EngineRequest(
        *("r", list(prompt), params),
        retry_started=retry_started,
        has_other_target=has_other_target,
    )


@dataclass
class Setup:
    """A running fleet and its executor."""

    fleet: EngineFleet
    executor: LocalExecutor

    def generate(self, prompt: Sequence[int], max_tokens: int = 5, **options: bool) -> Sink:
        """Submit with one sink."""
        sink = Sink()
        self.fleet.submit(request(prompt, max_tokens, **options), [sink])
        return sink

    async def until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        """Wait for a condition of the fleet."""
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.005)

    async def ready(self) -> None:
        await self.until(lambda: self.fleet.is_ready)


MakeFleet = Callable[..., Awaitable[Setup]]


@pytest.fixture
async def make_fleet(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MakeFleet]:
    """Start fleets of fake engines, soon again; environment variables as keywords."""
    monkeypatch.setattr("gatewayd.engines.replicas.engine_process._BACKOFF_SECONDS", (0.05, 0.1))
    running: list[Setup] = []

    async def make(
        *,
        num_replicas: int = 1,
        router: RouterStrategy | None = None,
        patience: SilenceLimits | None = None,
        limits: QueueLimits | None = None,
        failed_starts: int = 0,
        **env: object,
    ) -> Setup:
        executor = LocalExecutor()
        executor.failures = failed_starts
        launch = Launch(
            executor=executor,
            command=(sys.executable, str(FAKE_ENGINE), "--fd", "{fd}"),
            env={name: str(value) for name, value in env.items()},
            config=CONFIG,
            patience=patience or SilenceLimits(),
        )
        plugin_times = PluginTimes(0.05)
        fenced = FencedRouter(
            router or LeastLoaded(), "test", plugin_times, Watchdog(plugin_times, 1.0)
        )
        fleet = EngineFleet(launch, fenced, limits or QueueLimits(1000, 10**6), num_replicas)
        fleet.start()
        running.append(Setup(fleet, executor))
        return running[-1]

    yield make
    for setup in running:
        await setup.fleet.stop()
        for process in setup.executor.started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.process.wait()


@pytest.fixture
def make_sink() -> type[Sink]:
    return Sink


@pytest.fixture
def make_request() -> Callable[..., EngineRequest]:
    return request


@pytest.fixture
def expected_tokens() -> Callable[[Sequence[int], int], list[int]]:
    """What the fake engine generates from a prompt; written down a second time on purpose."""

    def tokens(prompt: Sequence[int], count: int, vocab: int = 4096) -> list[int]:
        return [300 + (sum(prompt) * 31 + k * 7) % (vocab - 300) for k in range(count)]

    return tokens
