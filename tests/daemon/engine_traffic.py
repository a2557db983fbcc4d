"""Engine process without a daemon, under requests as fast as it serves them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gatewayd.engines.replicas.launch import ENGINE_COMMAND, ENGINE_ENV
from gatewayd_engine.process.client import EngineClient
from gatewayd_engine.process.config import EngineConfig
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.messages import (
    FINISH_REASONS,
    Abort,
    Command,
    EngineReady,
    Event,
    Evicted,
    Fatal,
    Pinned,
    Shutdown,
    StepOutput,
    Swapped,
)
from gatewayd_exec_local.strategy import Local, LocalProcess
from gatewayd_hooks.execution import EngineCommand
from gatewayd_hooks.helpers.children import environment
from tests.daemon.random_engine_requests import Asking, Request

OUTSTANDING = 160
"""Requests that run or wait at any time."""
_ACT_EVERY = 150
"""Requests between two things that an operator does."""
_REFUSED = "invalid_request"
"""Code of those that never have a sequence."""


@dataclass
class Traffic:
    """Sends requests and counts how they end.

    Attributes:
        asking: says what comes.
        ends: requests, by kind and by how they ended.
        wrong: what must not be.
    """

    asking: Asking = field(default_factory=Asking)
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._asked = self._num_open = 0
        self._open: dict[int, Request] = {}
        self._client: EngineClient | None = None
        self._stats = EngineStats()
        self._is_ready, self._has_ended, self._has_told = (asyncio.Event() for _ in range(3))

    @property
    def count(self) -> int:
        """Requests that have ended."""
        return self.ends.total()

    async def start(self, config: EngineConfig, env: Mapping[str, str]) -> LocalProcess:
        """Start the engine and wait until it serves; its process."""
        process = Local().start(
            EngineCommand(ENGINE_COMMAND, environment({**ENGINE_ENV, **env}), 0)
        )
        self._client = await EngineClient.connect(process.socket, self._on_event, self._on_lost)
        self._client.send(config)
        async with asyncio.timeout(60):
            await self._is_ready.wait()
        return process

    async def more(self, number: int) -> None:
        """Ask for more until so many more have ended; others are under way then."""
        until = self.count + number
        while self.count < until and not self.wrong:
            while self._num_open < OUTSTANDING:
                self._ask()
                if self._asked % _ACT_EVERY == 0:
                    for command in self.asking.action(sorted(self._open)):
                        self._send(command)
            self._has_ended.clear()
            async with asyncio.timeout(60):
                await self._has_ended.wait()

    async def idle(self) -> EngineStats:
        """What the engine says when all have ended, those too that an operator held."""
        self._send(self.asking.release())
        async with asyncio.timeout(60):
            while self._num_open or self._stats.num_running or self._stats.num_waiting:
                self._has_told.clear()
                await self._has_told.wait()
        return self._stats

    async def stop(self, process: LocalProcess) -> int | None:
        """Let the engine end; its status."""
        self._send(Shutdown())
        async with asyncio.timeout(30):
            while process.poll() is None:
                await asyncio.sleep(0.05)
        if self._client is not None:
            self._client.close()
        return process.poll()

    def _send(self, command: Command) -> None:
        if self._client is not None:
            self._client.send(command)

    def _ask(self) -> None:
        request = self.asking.request()
        ids = request.message.sequences
        self._open.update(dict.fromkeys(ids, request))
        self._num_open += 1
        self._asked += 1
        self._send(request.message)
        if request.aborts_at == 0:
            self._send(Abort(ids))

    # What is answered

    def _on_lost(self, error: Exception | None) -> None:
        self.wrong.append(f"the engine is gone: {error}")
        self._has_ended.set()

    def _on_event(self, event: Event) -> None:
        match event:
            case EngineReady():
                self._is_ready.set()
            case StepOutput():
                self._step(event)
            case Swapped(error=error) | Evicted(error=error) if error:
                self.wrong.append(error)
            case Pinned(error=error) if error and "pins" not in error:
                self.wrong.append(error)
            case Fatal():
                self.wrong.append(event.message)

    def _step(self, output: StepOutput) -> None:
        self._stats = output.stats
        self._has_told.set()
        for i in np.frombuffer(output.sequences, np.int64).tolist():
            request = self._open.get(i)
            if request is None:
                self.wrong.append(f"a token of {i}, which has ended")
                continue
            request.tokens += 1
            if request.tokens == request.aborts_at:
                self._send(Abort(sorted(request.left)))
        for one in output.finished:
            request = self._open.get(one.sequence)
            if request is not None:
                request.end = FINISH_REASONS[one.reason] if one.error is None else one.error[0]
                if request.end == _REFUSED:
                    self._over(one.sequence)
        for i in np.frombuffer(output.ended, np.int64).tolist():
            self._over(i)

    def _over(self, sequence: int) -> None:
        request = self._open.pop(sequence, None)
        if request is None:  # it was aborted when it had ended
            return
        request.left.discard(sequence)
        if not request.left:
            self.ends[request.kind, request.end] += 1
            self._num_open -= 1
            self._has_ended.set()
