"""Offline benchmark engine: a real process on the embedded model, without a daemon."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from typing import Any

import msgspec
import numpy as np
import pytest

from gatewayd.cli.bench.offline.engine import (
    BenchEngine,
    EngineError,
    EngineRound,
    EngineStep,
    running,
)
from gatewayd.cli.bench.offline.measure import outcome
from gatewayd.cli.bench.offline.workloads import Workload
from gatewayd.cli.bench.target import subject
from gatewayd.config.tables import Config
from gatewayd.engines.replicas.engine_process import FencedProcess
from gatewayd.engines.replicas.silence_limits import SilenceLimits
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.frames import encode
from gatewayd_engine.process.messages import (
    LENGTH,
    PROTOCOL_VERSION,
    Command,
    EngineReady,
    Finished,
    ModelInfo,
    StepOutput,
)
from gatewayd_exec_local.strategy import Local


@pytest.fixture
def config() -> Config:
    with subject(None, "cpu", {"model.dtype": "auto", "log.level": "warning"}) as found:
        return found.config()


def pid_of(engine: BenchEngine) -> int:
    return engine._process.pid


async def is_gone(pid: int) -> bool:
    for _ in range(3000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        await asyncio.sleep(0.01)
    return False


async def test_every_request_gets_its_tokens_and_every_token_is_computed_once(
    config: Config,
) -> None:
    prompts = [[10 + i, *range(100, 120)] for i in range(5)]
    lengths = [1, 3, 7, 7, 12]
    seen: list[int] = []
    stages: list[str] = []
    async with running(config, lambda stage, fraction: stages.append(stage)) as (engine, model):
        pid = pid_of(engine)
        assert (model.vocab_size, model.max_model_len, model.device) == (4096, 2048, "cpu")
        first = await engine.run(prompts, lengths, seen.append)
        second = await engine.run(prompts[:2], lengths[:2])
    assert await is_gone(pid)
    assert stages
    assert first.tokens == lengths
    assert sum(seen) == sum(lengths)
    # The last token of an answer is told, but nothing is computed from it.
    assert sum(step.tokens for step in first.steps) == 5 * 21 + sum(lengths) - 5
    # One token of a sequence comes of one step, but prompts may wait for each other.
    assert len(first.steps) >= 12
    assert all(1 <= step.sequences <= 5 for step in first.steps)
    assert sum(step.sequences for step in first.steps) >= sum(lengths)
    assert 0 < sum(step.seconds for step in first.steps) < first.seconds
    assert second.tokens == lengths[:2]
    # All but their last token is cached.
    assert second.after.prefix_hits - second.before.prefix_hits == 2 * 20
    assert sum(step.tokens for step in second.steps) == 2 * 1 + 4 - 2


async def test_cpu_time_is_the_engines_own(config: Config) -> None:
    async with running(config) as (engine, _):
        idle = await engine.run([[50]], [1])
        busy = await engine.run([list(range(10, 900))] * 2, [40] * 2)
    assert idle.cpu_seconds is not None
    assert busy.cpu_seconds is not None
    assert idle.cpu_seconds < busy.cpu_seconds
    ticks = 0.05
    assert 0 < busy.cpu_seconds <= busy.seconds * len(os.sched_getaffinity(0)) + ticks


async def test_a_request_that_is_refused_fails_the_round_by_its_number(config: Config) -> None:
    async with running(config) as (engine, _):
        with pytest.raises(EngineError, match=r"^request 1 failed: .*2048.*\(invalid_request\)$"):
            await engine.run([[50], [50] * 3000], [1, 1])


async def test_an_engine_that_dies_ends_the_round_and_the_next_one(config: Config) -> None:
    async with running(config) as (engine, _):
        pid = pid_of(engine)

        def kill(count: int) -> None:
            os.kill(pid, signal.SIGKILL)

        for _ in range(2):
            with pytest.raises(EngineError, match="the engine was lost"):
                await engine.run([[50]], [2000], kill)


async def test_a_model_that_cannot_be_served_is_said_by_the_engine(config: Config) -> None:
    bad = config.model_copy(update={"model": config.model.model_copy(update={"path": "/nowhere"})})
    with pytest.raises(EngineError, match="/nowhere"):
        async with running(bad):
            pass


@pytest.mark.parametrize("method", ["open", "start"])
async def test_an_executor_that_fails_is_closed(
    config: Config, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fails(self: Any, given: Any) -> None:
        raise OSError("no such place")

    closed: list[Any] = []
    monkeypatch.setattr(Local, method, fails)
    monkeypatch.setattr(Local, "close", lambda self: closed.append(self))
    with pytest.raises((OSError, EngineError), match="no such place"):
        async with running(config):
            pass
    assert len(closed) == 1


def round_of(tokens: list[int], steps: list[EngineStep]) -> EngineRound:
    before = EngineStats(prefix_hits=10, preemptions=1)
    after = EngineStats(prefix_hits=26, preemptions=4)
    return EngineRound(tokens, before, after, steps, seconds=0.5, cpu_seconds=0.006)


def test_figures_are_totals_by_time() -> None:
    workload = Workload("w", [1, 2], [[3], [4, 5]], [2, 3])
    found = outcome(
        workload,
        round_of([2, 3], [EngineStep(2, 7, 0.1), EngineStep(2, 2, 0.02), EngineStep(1, 1, 0.03)]),
    )
    assert (found.requests, found.input_tokens, found.output_tokens) == (2, 7, 5)
    assert (found.cached_tokens, found.preemptions, found.steps) == (16, 3, 3)
    assert found.step_ms == pytest.approx(50)
    assert found.step_tokens == pytest.approx(10 / 3)
    assert found.step_sequences == pytest.approx(5 / 3)
    assert found.cpu_us == pytest.approx(1200)
    assert found.figures() == {
        "seconds": 0.5,
        "output_tokens_per_second": 10,
        "input_tokens_per_second": 14,
        "requests_per_second": 4,
    }


def test_a_request_without_all_its_tokens_is_an_error() -> None:
    workload = Workload("w", [], [[3], [4]], [2, 3])
    with pytest.raises(EngineError, match="request 1 of w got 2 tokens of 3"):
        outcome(workload, round_of([2, 2], []))


class FakeProcess:
    """An engine whose end of the socket the test holds."""

    def __init__(self) -> None:
        self.socket, self.theirs = socket.socketpair()
        self.pid = os.getpid()

    def poll(self) -> int | None:
        return 0

    terminate = abort = kill = lambda self: None


async def read_commands(stream: asyncio.StreamReader, count: int) -> list[Any]:
    found = []
    for _ in range(count):
        (size,) = struct.unpack("<I", await stream.readexactly(4))
        found.append(msgspec.msgpack.decode(await stream.readexactly(size), type=Command))
    return found


def told(step: int, sequences: list[int], tokens: int, finished: list[Finished]) -> bytes:
    stats = EngineStats(step, num_running=1, step_tokens=tokens, step_seconds=0.25)
    ids = np.array(sequences, np.int64)
    return encode(
        StepOutput(stats, ids.tobytes(), ids.astype(np.int32).tobytes(), finished=finished)
    )


async def test_all_requests_leave_before_an_answer_and_only_steps_that_computed_count(
    config: Config,
) -> None:
    process = FakeProcess()
    reader, writer = await asyncio.open_unix_connection(sock=process.theirs)
    engine = BenchEngine(FencedProcess(process), lambda stage, fraction: None)
    model = ModelInfo("L", 1, "float32", "cpu", 9, 99, [2], 9, 16, 8, 64)
    writer.write(encode(EngineReady(PROTOCOL_VERSION, process.pid, model, 0.5)))
    assert await engine.load(config) == model
    await reader.readexactly(struct.unpack("<I", await reader.readexactly(4))[0])  # its settings
    going = asyncio.create_task(engine.run([[5, 6], [7]], [2, 1]))
    first, second = await read_commands(reader, 2)
    assert np.frombuffer(first.prompt, np.int32).tolist() == [5, 6]
    assert (first.params.max_tokens, second.params.max_tokens) == (2, 1)
    for command in (first, second):
        assert (command.params.temperature, command.params.ignore_eos) == (0.0, True)
    (one,), (other,) = first.sequences, second.sequences
    writer.write(told(1, [], 0, []))  # nothing was planned
    writer.write(told(2, [one, other], 3, [Finished(other, LENGTH)]))
    writer.write(told(2, [], 3, []))  # what an idle engine says from time to time
    writer.write(told(3, [one], 1, [Finished(one, LENGTH)]))
    found = await going
    assert found.tokens == [2, 1]
    assert found.steps == [EngineStep(2, 3, 0.25), EngineStep(2, 1, 0.25)]
    await engine.stop(SilenceLimits())
    writer.close()
