"""Engine process for benchmarks, started and driven as the daemon does, but without one."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gatewayd.config.tables import Config
from gatewayd.engines.replicas.engine_process import (
    FencedProcess,
    ProcessExit,
    describe_exit,
    end_process,
    start,
)
from gatewayd.engines.replicas.launch import ENGINE_COMMAND, engine_config, environment, served_name
from gatewayd.engines.replicas.silence_limits import SilenceLimits
from gatewayd_engine.process.client import EngineClient
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.messages import (
    EngineReady,
    Event,
    Fatal,
    Finished,
    Loading,
    ModelInfo,
    SamplingParams,
    Shutdown,
    StepOutput,
    Submit,
)
from gatewayd_hooks.execution import EngineCommand
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.strategy import Kind

_LAST_SECONDS = 2.0


class EngineError(Exception):
    """The engine could not be started, failed, or returned unexpected results."""


class EngineStep(NamedTuple):
    """Engine step that computed tokens."""

    sequences: int
    """Sequences in the batch."""
    tokens: int
    """Tokens computed, of prefill and decode."""
    seconds: float


@dataclass(slots=True)
class EngineRound:
    """Measurements of requests that were submitted together and have all finished.

    Attributes:
        seconds: from before the first submission to the arrival of the last token.
        cpu_seconds: CPU time of the engine process meanwhile; None if it cannot be read.
        tokens: generated tokens by request.
        steps: engine steps in order.
        before, after: the engine's statistics before and after.
    """

    tokens: list[int]
    before: EngineStats
    after: EngineStats
    steps: list[EngineStep] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float | None = None


Watcher = Callable[[int], None]
"""Called with the number of tokens that have arrived."""


class BenchEngine:
    """Client of an engine process; create it with ``running``."""

    def __init__(self, process: FencedProcess, watch_loading: Callable[[str, float], None]) -> None:
        self._process = process
        self._watch_loading = watch_loading
        self._stats = EngineStats()
        self._next_sequence = 1
        self._first_sequence = 0
        self._num_open = 0
        self._round: EngineRound | None = None
        self._watch: Watcher = lambda count: None
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._client: EngineClient | None = None
        self._loss = ""
        self._model: ModelInfo | None = None

    async def load(self, config: Config) -> ModelInfo:
        """Send the engine its configuration and wait until it is ready.

        Raises:
            EngineError: it failed or exited while loading.
        """
        self._client = await EngineClient.connect(
            self._process.socket, self._on_event, self._on_lost
        )
        # The configuration is an engine's first frame; ``EngineReady`` ends its loading.
        self._client.send(engine_config(config))
        await self._end
        if self._model is None:
            raise EngineError("the engine exited while loading")
        return self._model

    async def run(
        self,
        prompts: Sequence[Sequence[int]],
        output_lens: Sequence[int],
        watch: Watcher = lambda count: None,
    ) -> EngineRound:
        """Submit all requests at once, greedy and ignoring EOS, and wait for the last token.

        Raises:
            EngineError: a request or the engine failed.
        """
        if self._client is None or self._loss:
            raise EngineError(self._loss or "the engine is not loaded")
        current = EngineRound([0] * len(prompts), self._stats, self._stats)
        self._round, self._watch, self._num_open = current, watch, len(prompts)
        self._first_sequence = self._next_sequence
        self._next_sequence += len(prompts)
        self._end = asyncio.get_running_loop().create_future()
        cpu = _cpu_seconds(self._process.pid)
        began = time.perf_counter()
        for i, (prompt, length) in enumerate(zip(prompts, output_lens, strict=True)):
            params = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True)
            ids = np.array(prompt, np.int32).tobytes()
            self._client.send(Submit([self._first_sequence + i], ids, params))
        await self._end
        current.seconds = time.perf_counter() - began
        current.after = self._stats
        if cpu is not None and (now := _cpu_seconds(self._process.pid)) is not None:
            current.cpu_seconds = now - cpu
        self._round = None
        return current

    async def stop(self, patience: SilenceLimits) -> None:
        """Shut the engine down, by force if it does not exit in time."""
        if self._client is not None:
            self._client.send(Shutdown())
        await end_process(
            self._process, patience, ProcessExit.ASKED if self._model else ProcessExit.LOADING
        )
        if self._client is not None:
            self._client.close()
        else:
            self._process.socket.close()

    def _on_event(self, event: Event) -> None:
        match event:
            case Loading():
                self._watch_loading(event.stage, event.fraction)
            case EngineReady():
                self._model = event.model
                self._finish()
            case StepOutput():
                self._on_step(event)
            case Fatal():
                self._finish(f"{event.message} ({event.code})")
            case _:
                pass

    def _on_step(self, event: StepOutput) -> None:
        stats, current = event.stats, self._round
        # An idle engine repeats its statistics from time to time.
        is_new, self._stats = stats.step > self._stats.step, stats
        if current is None:
            return
        if is_new and stats.step_tokens:
            # The statistics are of after the step: sequences that it finished were in its batch.
            sequences = stats.num_running + len(event.finished)
            current.steps.append(EngineStep(sequences, stats.step_tokens, stats.step_seconds))
        indices = np.frombuffer(event.sequences, np.int64) - self._first_sequence
        for index in indices.tolist():
            current.tokens[index] += 1
        for finished in event.finished:
            self._on_finished(finished)
        self._watch(len(indices))

    def _on_finished(self, finished: Finished) -> None:
        if finished.error is not None:
            index = finished.sequence - self._first_sequence
            self._finish(f"request {index} failed: {finished.error[1]} ({finished.error[0]})")
        self._num_open -= 1
        if not self._num_open:
            self._finish()

    def _on_lost(self, error: Exception | None) -> None:
        self._loss = f"the engine was lost: {error or describe_exit(self._process.poll())}"
        self._finish(self._loss)

    def _finish(self, error: str = "") -> None:
        # The first end counts: later ones are of an engine that stops, or is failing already.
        if self._end.done():
            return
        if error:
            self._end.set_exception(EngineError(error))
        else:
            self._end.set_result(None)


@asynccontextmanager
async def running(
    config: Config, watch_loading: Callable[[str, float], None] = lambda stage, fraction: None
) -> AsyncIterator[tuple[BenchEngine, ModelInfo]]:
    """Start and load an engine process, and stop it at the end of the block.

    Raises:
        EngineError: it cannot be started.
    """
    table = config.executor
    host = PluginHost(Catalog.installed())
    executor = host.strategy(Kind.EXECUTOR, table.strategy, table.settings(table.strategy))
    # Before ``open``: an executor that fails halfway is closed as well.
    with closing(executor):
        executor.open(GatewayResources(served_name(config), 1))
        try:
            process = start(executor, EngineCommand(ENGINE_COMMAND, environment(config), 0))
        except OSError as error:
            raise EngineError(f"the engine cannot be started: {error}") from error
        engine = BenchEngine(process, watch_loading)
        try:
            yield engine, await engine.load(config)
        finally:
            await engine.stop(SilenceLimits(stop_seconds=_LAST_SECONDS))


def _cpu_seconds(pid: int) -> float | None:
    """Return the CPU time of a process and its threads, user and system; None if unavailable."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return None
    # The name in parentheses may contain anything; user and system ticks are fields 14 and 15.
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
