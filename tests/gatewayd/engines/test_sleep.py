"""Fleets that sleep: real engine processes end, and what waits is served after the next load."""

from __future__ import annotations

import asyncio
from typing import Any

from gatewayd.engines.api import ReplicaState


async def test_a_request_to_a_sleeping_fleet_wakes_it(make_fleet: Any) -> None:
    started = await make_fleet()
    await started.ready()
    fleet = started.fleet
    assert await fleet.sleep()
    assert (fleet.condition, fleet.is_ready) == ("asleep", True)
    assert [one.pid for one in fleet.status()] == [None]
    sink = started.generate([1, 2, 3])
    await started.until(lambda: sink.reason is not None)
    assert sink.reason == "length"


async def test_it_sleeps_after_its_requests_and_keeps_those_that_come_meanwhile(
    make_fleet: Any,
) -> None:
    started = await make_fleet(FAKE_STEP_MS="20")
    await started.ready()
    fleet = started.fleet
    asked: list[bool] = []
    fleet.demand = asked.append
    first = started.generate([1, 2, 3], 20)
    await started.until(lambda: first.ids)
    sleeping = asyncio.create_task(fleet.sleep())
    await asyncio.sleep(0.05)
    second = started.generate([1, 2, 3], 4)
    assert await sleeping
    assert (first.reason, second.reason) == ("length", None)
    assert asked == [False, False]  # at its arrival, and when the engines had ended
    fleet.wake()
    await started.until(lambda: second.reason is not None)
    assert second.reason == "length"


async def test_a_held_request_is_released_so_that_it_can_sleep(
    make_fleet: Any, make_sink: Any, make_request: Any
) -> None:
    started = await make_fleet()
    await started.ready()
    handle = started.fleet.submit(make_request([1, 2, 3]), [make_sink()])
    started.fleet.operating.hold(handle.job)
    assert await asyncio.wait_for(started.fleet.sleep(), 10)


async def test_a_sleep_beside_an_unload_waits_until_the_memory_is_free(make_fleet: Any) -> None:
    started = await make_fleet(FAKE_STEP_MS="50")
    await started.ready()
    fleet = started.fleet
    started.generate([1, 2, 3], 40)
    sleeping = asyncio.create_task(fleet.sleep())
    await asyncio.sleep(0.2)
    unloading = asyncio.create_task(fleet.unload(0.3))
    await sleeping
    assert [one.pid for one in fleet.status()] == [None]
    await unloading
    assert fleet.is_unloaded
    assert fleet.condition == "unloaded"


async def test_a_failed_replica_does_not_keep_the_others_from_sleeping(make_fleet: Any) -> None:
    started = await make_fleet(num_replicas=2)
    await started.ready()
    replicas = started.fleet._replicas
    await started.until(lambda: all(one.can_serve for one in replicas))
    replicas[1].state = ReplicaState.FAILED
    assert started.fleet.is_resident
