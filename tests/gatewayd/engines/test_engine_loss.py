"""Engine loss: engines that die, hang, send nonsense or do not start."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gatewayd.engines.api import ReplicaState
from gatewayd.engines.replicas.silence_limits import SilenceLimits
from gatewayd.errors import EngineLost, EngineUnavailable
from gatewayd_engine.process.messages import PROTOCOL_VERSION
from gatewayd_hooks.execution import EngineCommand
from tests.gatewayd.engines.conftest import LocalExecutor, LocalProcess

Make = Callable[..., Awaitable[Any]]
Expected = Callable[[Sequence[int], int], list[int]]
# Each is quick in what it is about, and waits as long as a busy machine may take for the rest.
HANGS = SilenceLimits(hang_seconds=0.8, doubt_seconds=0.5, load_seconds=20, dump_seconds=10)
NEVER_LOADS = SilenceLimits(hang_seconds=20, doubt_seconds=10, load_seconds=4, dump_seconds=0.2)


def _kill(setup: Any, index: int = 0) -> None:
    os.kill(setup.fleet.status()[index].pid, signal.SIGKILL)


async def test_started_streams_fail_and_queued_requests_are_served_again(
    make_fleet: Make, expected_tokens: Expected
) -> None:
    setup = await make_fleet(FAKE_STEP_MS=5, FAKE_MAX_RUNNING=4)
    sinks = [setup.generate([k], 60) for k in range(1, 21)]
    await setup.until(lambda: sum(bool(sink.ids) for sink in sinks) == 4)
    _kill(setup)
    await sinks[0].end()  # it is told before there is another engine
    assert not setup.fleet.is_ready
    assert setup.fleet.status()[0].state is ReplicaState.RESTARTING
    for sink in sinks[:4]:
        assert isinstance((await sink.end()).error, EngineLost)
        assert sink.error is not None
        assert sink.error.code == "engine_restarted"
    for k, sink in enumerate(sinks[4:], start=5):
        assert (await sink.end()).ids == expected_tokens([k], 60)
        assert sink.calls.count("admitted") == 1
    assert setup.fleet.status()[0].restarts == 1
    assert setup.fleet.backlog.num_requests == 0


async def test_a_request_with_another_target_waits_for_no_other_engine(make_fleet: Make) -> None:
    setup = await make_fleet(FAKE_STEP_MS=5, FAKE_MAX_RUNNING=1)
    sinks = [setup.generate([k], 60, has_other_target=k != 3) for k in (1, 2, 3)]
    await setup.until(lambda: bool(sinks[0].ids))
    _kill(setup)
    for sink in sinks[:2]:
        assert isinstance((await sink.end()).error, EngineLost)
    assert not setup.fleet.is_ready  # they failed before there is another engine
    assert len((await sinks[2].end()).ids) == 60
    assert setup.fleet.backlog.num_requests == 0


async def test_queued_requests_keep_their_order(make_fleet: Make) -> None:
    setup = await make_fleet(FAKE_STEP_MS=5, FAKE_MAX_RUNNING=1)
    order: list[int] = []
    sinks = []
    for k in range(6):
        sink = setup.generate([k + 1], 3 if k else 1000)
        sink.on_tokens = lambda _, k=k: order.append(k)
        sinks.append(sink)
    await setup.until(lambda: len(order) > 2)
    _kill(setup)
    for sink in sinks:
        await sink.end()
    assert [k for k in order if k] == sorted(k for k in order if k)


async def test_a_sink_may_cancel_a_sibling_request_while_it_is_told_of_the_loss(
    make_fleet: Make, make_sink: type, make_request: Any
) -> None:
    setup = await make_fleet(FAKE_STEP_MS=5)
    kept, lost, later = make_sink(), make_sink(), make_sink()
    options = {"max_tokens": 500, "retry_started": True}
    first = setup.fleet.submit(make_request([1], **options), [kept])
    setup.fleet.submit(make_request([2], 500), [lost])
    last = setup.fleet.submit(make_request([3], **options), [later])
    tell = lost.failed

    def tell_and_cancel(error: Any) -> None:
        tell(error)
        first.cancel()
        last.cancel()

    lost.failed = tell_and_cancel
    await setup.until(lambda: bool(kept.ids and lost.ids and later.ids))
    _kill(setup)
    await lost.end()
    assert len((await setup.generate([4], 3).end()).ids) == 3
    assert not kept.over.is_set()
    assert not later.over.is_set()
    assert "restarted" not in later.calls
    assert (setup.fleet.backlog.num_requests, setup.fleet.num_unfinished) == (0, 0)


async def test_a_request_that_nobody_has_seen_starts_over(
    make_fleet: Make, expected_tokens: Expected
) -> None:
    setup = await make_fleet(FAKE_STEP_MS=5)
    sink = setup.generate([3, 4], 50, retry_started=True)
    await setup.until(lambda: len(sink.ids) > 5)
    _kill(setup)
    await sink.end()
    assert sink.ids == expected_tokens([3, 4], 50)
    assert sink.calls.count("restarted") == 1


async def test_another_replica_takes_over_at_once(
    make_fleet: Make, expected_tokens: Expected
) -> None:
    setup = await make_fleet(num_replicas=2, FAKE_STEP_MS=5, FAKE_MAX_RUNNING=2)
    await setup.until(lambda: all(s.state is ReplicaState.READY for s in setup.fleet.status()))
    sinks = [setup.generate([k], 20, retry_started=True) for k in range(1, 13)]
    await setup.until(lambda: all(f.num_waiting < 6 for f in setup.fleet._dispatch.sent))
    _kill(setup)
    await setup.until(lambda: setup.fleet.status()[0].state is not ReplicaState.READY)
    assert setup.fleet.is_ready
    assert not setup.fleet._dispatch.pending
    for k, sink in enumerate(sinks, start=1):
        assert (await sink.end()).ids == expected_tokens([k], 20)


async def test_a_poisonous_request_is_given_up_and_the_daemon_goes_on(make_fleet: Make) -> None:
    setup = await make_fleet(FAKE_FAULTS="die_admitting")
    poison = setup.generate([666], 5)
    assert isinstance((await poison.end()).error, EngineLost)
    assert len((await setup.generate([1], 5).end()).ids) == 5
    # Counted once the process is buried, which the request does not wait for.
    assert setup.fleet.status()[0].restarts == 5


@pytest.mark.parametrize("fault", ["garbage@3", "short@3", "exit@3", "kill@3"])
async def test_an_engine_that_breaks_the_protocol_is_replaced(
    make_fleet: Make, expected_tokens: Expected, tmp_path: Path, fault: str
) -> None:
    setup = await make_fleet(FAKE_FAULTS=fault, FAKE_LIVES=f"{tmp_path}/lives:1")
    sink = setup.generate([9], 8, retry_started=True)
    assert (await sink.end()).ids == expected_tokens([9], 8)
    assert setup.fleet.status()[0].restarts == 1


async def test_a_hung_engine_is_dumped_killed_and_replaced(
    make_fleet: Make, expected_tokens: Expected, tmp_path: Path
) -> None:
    setup = await make_fleet(patience=HANGS, FAKE_FAULTS="hang@3", FAKE_LIVES=f"{tmp_path}/lives:1")
    await setup.ready()
    sink = setup.generate([9], 8, retry_started=True)
    await setup.until(lambda: not setup.fleet.is_ready)
    assert (await sink.end()).ids == expected_tokens([9], 8)
    assert setup.executor.started[0].aborted
    assert setup.executor.started[0].poll() == -signal.SIGABRT


async def test_an_idle_engine_is_not_taken_for_a_hung_one(make_fleet: Make) -> None:
    # Well above the heartbeat, which a busy machine may delay.
    patience = SilenceLimits(
        hang_seconds=2.0, doubt_seconds=1.5, load_seconds=5.0, dump_seconds=0.2
    )
    setup = await make_fleet(patience=patience)
    await setup.ready()
    await asyncio.sleep(3.0)
    assert setup.fleet.is_ready
    assert setup.fleet.status()[0].restarts == 0


async def test_starting_is_given_up_after_three_failures(
    make_fleet: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gatewayd.engines.replicas.engine_process._BACKOFF_SECONDS", (0.01, 0.02, 0.04)
    )
    setup = await make_fleet(FAKE_FAULTS="load_exit")
    sink = setup.generate([1], 1)
    reason = await asyncio.wait_for(setup.fleet.wait_failed(), 30)
    assert reason == "the connection ended (exit status 3)"
    assert len(setup.executor.started) == 3
    assert setup.fleet.status()[0].state is ReplicaState.FAILED
    assert isinstance((await sink.end()).error, EngineUnavailable)
    with pytest.raises(EngineUnavailable, match="exit status 3"):
        setup.generate([1], 1)


async def test_an_engine_that_explains_why_it_cannot_start_is_not_asked_again(
    make_fleet: Make,
) -> None:
    setup = await make_fleet(FAKE_FAULTS="load_fatal")
    reason = await asyncio.wait_for(setup.fleet.wait_failed(), 30)
    assert reason == "the model folder has no config.json"
    assert len(setup.executor.started) == 1


async def test_an_engine_of_another_version_is_refused(make_fleet: Make) -> None:
    setup = await make_fleet(FAKE_FAULTS="version")
    assert f"version {PROTOCOL_VERSION + 1} of the protocol" in await asyncio.wait_for(
        setup.fleet.wait_failed(), 30
    )


async def test_an_engine_that_hangs_while_loading_is_replaced(
    make_fleet: Make, tmp_path: Path
) -> None:
    setup = await make_fleet(
        patience=NEVER_LOADS, FAKE_FAULTS="load_hang", FAKE_LIVES=f"{tmp_path}/lives:1"
    )
    assert (await setup.generate([1], 2).end()).reason == "length"
    assert setup.fleet.status()[0].restarts == 1


async def test_an_executor_that_cannot_start_one_is_asked_again(make_fleet: Make) -> None:
    setup = await make_fleet(failed_starts=1)
    assert (await setup.generate([1], 2).end()).reason == "length"


async def test_an_engine_whose_socket_is_no_stream_is_ended_and_replaced(
    make_fleet: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, ours = LocalExecutor.start, []

    def first_without_stream(self: LocalExecutor, command: EngineCommand) -> LocalProcess:
        process = start(self, command)
        if len(self.started) == 1:
            ours.append(process.socket)  # open, so that the engine does not end by itself
            process.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        return process

    monkeypatch.setattr(LocalExecutor, "start", first_without_stream)
    setup = await make_fleet()
    assert (await setup.generate([1], 2).end()).reason == "length"
    assert setup.fleet.status()[0].restarts == 1
    first = setup.executor.started[0]
    assert first.poll() is not None
    assert first.socket.fileno() == -1
    ours[0].close()


async def test_stopping_fails_what_is_left_and_ends_the_engines(make_fleet: Make) -> None:
    setup = await make_fleet(FAKE_STEP_MS=5)
    sink = setup.generate([1], 10_000)
    await setup.until(lambda: bool(sink.ids))
    await setup.fleet.stop()
    assert isinstance(sink.error, EngineUnavailable)
    assert setup.executor.started[0].poll() == 0
    assert setup.fleet.status()[0].state is ReplicaState.STOPPED


async def test_restarts_leak_no_descriptor_and_no_thread(make_fleet: Make) -> None:
    setup = await make_fleet()
    await setup.ready()

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before = None
    for restart in range(3):
        await setup.generate([1], 2).end()
        before = before or held()
        _kill(setup)
        await setup.until(lambda n=restart: setup.fleet.status()[0].restarts > n)
        await setup.ready()
    await setup.until(lambda: held() == before)
