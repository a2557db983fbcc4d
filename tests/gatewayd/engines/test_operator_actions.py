"""Operator actions on jobs: reach their engine and follow them to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gatewayd.engines.api import ReplicaState
from gatewayd.errors import AdmissionPaused, EngineLost, ModelUnloaded
from gatewayd_engine.process.messages import Bump, Command, HoldRequest, Release, Submit
from gatewayd_hooks.scheduling import Priority

Make = Callable[..., Any]


def recorded(setup: Any) -> list[Command]:
    """Commands that are sent to the first replica from now on."""
    replica, found = setup.fleet._replicas[0], list[Command]()
    send = replica.send

    def write_down(command: Command) -> None:
        if not isinstance(command, Submit) or replica.can_serve:
            found.append(command)
        send(command)

    replica.send = write_down
    return found


def submit(setup: Any, make_request: Any, make_sink: Any, n: int = 1, **fields: Any) -> Any:
    """A job and its sinks."""
    sinks = [make_sink() for _ in range(n)]
    handle = setup.fleet.submit(make_request([1, 2, 3], **fields), sinks)
    return handle.job, sinks


async def test_the_engine_that_has_a_job_is_told(
    make_fleet: Make, make_request: Any, make_sink: Any
) -> None:
    setup = await make_fleet(FAKE_FAULTS="hold")
    setup.fleet.deadlines = (0.5, 2.0, None)
    await setup.ready()
    sent = recorded(setup)
    job, _ = submit(setup, make_request, make_sink, n=2)
    ids = [choice.sequence for choice in job.choices]
    operating, backlog = setup.fleet.operating, setup.fleet.backlog
    operating.hold(job)
    operating.release(job)
    operating.bump(job, None)
    operating.bump(job, Priority.REALTIME)
    assert sent[1:] == [
        HoldRequest(ids),
        Release(ids),
        Bump(ids),
        Bump(ids, Priority.REALTIME, 0.5),
    ]
    # It is counted as one of its new class.
    assert backlog.load("", Priority.REALTIME, 1).urgent_tokens == 3
    setup.fleet._dispatch.cancel(job, 0)
    operating.hold(job)
    assert sent[-1] == HoldRequest(ids[1:]), "who is over is told nothing"
    setup.fleet._dispatch.cancel(job, None)
    assert backlog.load("", Priority.BATCH, 1).urgent_tokens == 0
    assert backlog.num_requests == backlog.num_tokens == 0


async def test_one_that_no_engine_has_brings_its_state_with_it(
    make_fleet: Make, make_request: Any, make_sink: Any
) -> None:
    setup = await make_fleet(FAKE_LOAD_MS=300)
    setup.fleet.deadlines = (0.5, 2.0, None)
    sent = recorded(setup)
    job, _ = submit(setup, make_request, make_sink)
    own, _ = submit(setup, make_request, make_sink)
    own.has_deadline = True
    operating = setup.fleet.operating
    operating.hold(job)
    for one in (job, own):
        operating.bump(one, Priority.BATCH)
    operating.bump(job, None)
    await setup.ready()
    first, bump, second = sent
    assert isinstance(first, Submit)
    assert isinstance(second, Submit)
    assert (first.is_held, first.priority, first.deadline) == (True, Priority.BATCH, None)
    assert bump == Bump([choice.sequence for choice in job.choices])
    assert (second.is_held, second.priority, second.deadline) == (False, Priority.BATCH, 2.0)


async def test_a_held_suspect_keeps_no_other_from_its_trial(
    make_fleet: Make, make_request: Any, make_sink: Any
) -> None:
    setup = await make_fleet(FAKE_FAULTS="hold")
    await setup.ready()
    jobs = [submit(setup, make_request, make_sink)[0] for _ in range(2)]
    for job in jobs:
        job.losses = 100
    for process in setup.executor.started:
        process.kill()
    await setup.until(lambda: len(setup.executor.started) == 2)
    await setup.ready()
    assert [job.replica for job in jobs] == [0, None]
    setup.fleet.operating.hold(jobs[0])
    await setup.until(lambda: jobs[1].replica == 0)


async def test_a_pause_refuses_new_ones_and_ends_by_itself(
    make_fleet: Make, make_request: Any, make_sink: Any
) -> None:
    setup = await make_fleet(FAKE_STEP_MS=5)
    await setup.ready()
    fleet, running = setup.fleet, setup.generate([1, 2], 20)
    fleet.pause.start(None)
    assert (fleet.condition, fleet.is_ready) == ("paused", False)
    with pytest.raises(AdmissionPaused) as refusal:
        setup.generate([1, 2])
    assert refusal.value.retry_after == 30
    with pytest.raises(AdmissionPaused):
        await fleet.wait_model()
    fleet.pause.start(0.2)
    with pytest.raises(AdmissionPaused) as refusal:
        setup.generate([1, 2])
    assert refusal.value.retry_after == 1
    await setup.until(lambda: fleet.is_ready)
    await setup.generate([1, 2]).end()
    assert (await running.end()).reason == "length", "who is there goes on"
    fleet.pause.start(None)
    fleet.pause.end()
    assert fleet.condition == "ready"


async def test_unloaded_engines_are_no_more_and_come_back(make_fleet: Make) -> None:
    setup = await make_fleet(num_replicas=2, FAKE_STEP_MS=5)
    fleet = setup.fleet
    await setup.until(lambda: all(one.can_serve for one in fleet._replicas))
    short, long = setup.generate([1], 10), setup.generate([2], 100_000)
    await setup.until(lambda: bool(short.ids and long.ids))
    unloading = asyncio.create_task(fleet.unload(1.0))
    await asyncio.sleep(0)
    with pytest.raises(ModelUnloaded):
        setup.generate([3])
    await unloading
    assert (await short.end()).reason == "length", "it had the time"
    assert isinstance((await long.end()).error, ModelUnloaded)
    assert all(process.poll() is not None for process in setup.executor.started)
    assert {one.state for one in fleet.status()} == {ReplicaState.UNLOADED}
    assert fleet.condition == "unloaded"
    assert not fleet.problems()
    assert fleet.backlog.num_requests == fleet.num_unfinished == 0
    await fleet.unload(0)  # as it is already
    fleet.load()
    fleet.load()
    waiting = setup.generate([3], 5)
    assert (await waiting.end()).reason == "length"
    assert [one.restarts for one in fleet.status()] == [0, 0]
    assert len(setup.executor.started) == 4


async def test_unloaded_before_it_was_ever_ready(
    make_fleet: Make, make_request: Any, make_sink: Any
) -> None:
    setup = await make_fleet(FAKE_LOAD_MS=400)
    fleet = setup.fleet
    early = asyncio.create_task(fleet.wait_model())
    _, (pending,) = submit(setup, make_request, make_sink)
    await setup.until(lambda: bool(setup.executor.started))
    await fleet.unload(0)
    with pytest.raises(ModelUnloaded):
        await early
    assert isinstance((await pending.end()).error, ModelUnloaded)
    fleet.load()
    await asyncio.wait_for(fleet.wait_model(), 30)
    assert (await setup.generate([1]).end()).reason == "length"


async def test_loaded_again_while_requests_end_nothing_is_unloaded(make_fleet: Make) -> None:
    setup = await make_fleet(FAKE_STEP_MS=5)
    await setup.ready()
    running = setup.generate([1], 60)
    unloading = asyncio.create_task(setup.fleet.unload(60))
    await asyncio.sleep(0.02)
    setup.fleet.load()
    await asyncio.wait_for(unloading, 30)
    assert (await running.end()).reason == "length"
    assert len(setup.executor.started) == 1


@pytest.mark.parametrize("is_drain", [True, False])
async def test_nobody_waits_for_what_is_held_when_engines_end(
    make_fleet: Make, is_drain: bool, make_request: Any, make_sink: Any
) -> None:
    setup = await make_fleet(FAKE_FAULTS="hold")
    await setup.ready()
    jobs = [submit(setup, make_request, make_sink)[0] for _ in range(3)]
    for job in jobs[:2]:
        setup.fleet.operating.hold(job)
    sent = recorded(setup)
    if is_drain:
        setup.fleet.drain()
    else:
        unloading = asyncio.create_task(setup.fleet.unload(0.1))
        await asyncio.sleep(0)
    assert sent == [Release([choice.sequence for choice in job.choices]) for job in jobs[:2]]
    assert not any(job.is_held for job in jobs)
    if not is_drain:
        await unloading


async def test_loaded_again_while_its_engine_ends(make_fleet: Make) -> None:
    """The unload is over when the engine is, whatever is wanted by then."""
    setup = await make_fleet(FAKE_STEP_MS=5)
    await setup.ready()
    for lives in (2, 3):
        unloading = asyncio.create_task(setup.fleet.unload(0))
        await setup.until(lambda: setup.fleet.status()[0].state is ReplicaState.UNLOADED)
        assert not unloading.done()
        setup.fleet.load()
        await asyncio.wait_for(unloading, 30)
        await setup.until(lambda: setup.fleet.is_ready)
        assert (await setup.generate([1], 5).end()).reason == "length"
        assert len(setup.executor.started) == lives
        assert setup.executor.started[-2].poll() == 0, "it was asked to end, not lost"
    assert setup.fleet.status()[0].restarts == 0


async def test_unloaded_again_before_another_engine_starts(make_fleet: Make) -> None:
    setup = await make_fleet(FAKE_STEP_MS=5)
    await setup.ready()
    (replica,) = setup.fleet._replicas
    await replica.unload(0)
    async with asyncio.timeout(30):
        replica.load()
        await replica.unload(0)
    assert replica.state is ReplicaState.UNLOADED
    assert len(setup.executor.started) == 1


async def test_stopped_while_it_is_unloaded_or_unloading(make_fleet: Make) -> None:
    for seconds in (0.0, 300.0):
        setup = await make_fleet(FAKE_STEP_MS=5)
        await setup.ready()
        running = setup.generate([1], 100_000)
        unloading = asyncio.create_task(setup.fleet.unload(seconds))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(setup.fleet.stop(), 30)
        await asyncio.wait_for(unloading, 30)
        assert (await running.end()).error is not None
        assert {one.state for one in setup.fleet.status()} == {ReplicaState.STOPPED}


async def test_an_engine_that_is_lost_while_it_is_unloaded_is_not_started_again(
    make_fleet: Make,
) -> None:
    setup = await make_fleet(FAKE_STEP_MS=5)
    await setup.ready()
    running = setup.generate([1], 100_000)
    unloading = asyncio.create_task(setup.fleet.unload(1.0))
    await setup.until(lambda: running.ids)
    setup.executor.started[0].kill()
    await asyncio.wait_for(unloading, 30)
    assert isinstance((await running.end()).error, EngineLost | ModelUnloaded)
    await setup.until(lambda: all(p.poll() is not None for p in setup.executor.started))
    assert setup.fleet.status()[0].state is ReplicaState.UNLOADED
