"""Fault isolation: poisonous requests, hung replicas, broken executors fail alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from gatewayd.engines.api import ReplicaState
from gatewayd.engines.replicas.replica import Replica
from gatewayd.errors import EngineLost

Make = Callable[..., Awaitable[Any]]
Expected = Callable[[Sequence[int], int], list[int]]


@pytest.mark.parametrize("place", [0, 3, 20])
async def test_a_poisonous_request_fails_alone(
    make_fleet: Make, expected_tokens: Expected, place: int
) -> None:
    setup = await make_fleet(FAKE_FAULTS="die_admitting", FAKE_MAX_RUNNING=4)
    prompts = [[k] for k in range(1, 21)]
    prompts.insert(place, [666])
    sinks = [setup.generate(prompt, 5, retry_started=True) for prompt in prompts]
    for sink in sinks:
        await sink.end()
    assert isinstance(sinks.pop(place).error, EngineLost)
    prompts.pop(place)
    assert [sink.ids for sink in sinks] == [expected_tokens(prompt, 5) for prompt in prompts]
    assert setup.fleet.backlog.num_requests == 0


async def test_an_engine_starts_again_without_the_codec_that_ended_it(
    make_fleet: Make, expected_tokens: Expected
) -> None:
    setup = await make_fleet(FAKE_FAULTS="codec@1")
    sink = setup.generate([3, 4], 5, retry_started=True)
    await sink.end()
    assert sink.ids == expected_tokens([3, 4], 5)
    assert setup.fleet._replicas[0].setup.config.quarantined == [["kv_codec", "broken"]]


async def test_a_silent_replica_gets_nothing_while_another_answers(
    make_fleet: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = await make_fleet(num_replicas=2)
    await setup.until(lambda: all(s.state is ReplicaState.READY for s in setup.fleet.status()))
    monkeypatch.setattr(Replica, "is_responsive", property(lambda r: r.index == 1))
    sinks = [setup.generate([k], 3) for k in range(1, 7)]
    assert [len(flight) for flight in setup.fleet._dispatch.sent] == [0, 6]
    monkeypatch.setattr(Replica, "is_responsive", property(lambda r: False))
    sinks.append(setup.generate([9], 3))
    assert not setup.fleet._dispatch.pending
    await asyncio.gather(*(sink.end() for sink in sinks))


async def test_an_executor_may_raise_anything(
    make_fleet: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gatewayd.engines.replicas.engine_process._BACKOFF_SECONDS", (0.01, 0.02, 0.04)
    )
    setup = await make_fleet(failed_starts=3)
    setup.executor.failure = RuntimeError("no machine left")
    reason = await asyncio.wait_for(setup.fleet.wait_failed(), 30)
    assert "no machine left" in reason
    assert setup.fleet.status()[0].state is ReplicaState.FAILED
