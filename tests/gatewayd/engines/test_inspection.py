"""Engine inspection: one question at a time, short timeout, cached answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gatewayd.engines.inspection import EngineInspection
from gatewayd.engines.replicas.replica import Replica
from gatewayd.errors import EngineUnavailable, InvalidRequest
from gatewayd_engine.process.inspect_messages import (
    Browse,
    Browsed,
    Inspect,
    Inspected,
    MachineStats,
    PoolStats,
)

POOL = PoolStats(1, b"", b"", [0, 0, 0, 0, 0], [], [])


class Engine:
    """Notes what it is sent."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.can_serve = True
        self.sent: list[Any] = []

    def send(self, command: Any) -> None:
        self.sent.append(command)


def inspection(count: int) -> tuple[EngineInspection, list[Any]]:
    engines = [Engine(index) for index in range(count)]
    return EngineInspection(cast(list[Replica], engines)), engines


def said(question: Inspect, tier: str = "") -> Inspected:
    return Inspected(question.number, b"", b"", b"", b"", b"", b"", POOL, {tier: 1})


async def test_all_are_asked_and_one_that_is_silent_holds_up_nobody() -> None:
    inspecting, (quick, silent) = inspection(2)
    looking = asyncio.create_task(inspecting.inspect(0.1))  # or 60 s, as it is here for others
    await asyncio.sleep(0)
    inspecting.answered(quick, said(quick.sent[0], "a"))
    assert {index: one.tiers for index, one in (await looking).items()} == {0: {"a": 1}}
    # The silent one is not asked again; what it says late counts the next time.
    looking = asyncio.create_task(inspecting.inspect(60.0))
    await asyncio.sleep(0)
    assert (len(quick.sent), len(silent.sent)) == (2, 1)
    inspecting.answered(silent, said(silent.sent[0], "late"))
    inspecting.answered(quick, said(quick.sent[1], "b"))
    found = await looking
    assert {index: one.tiers for index, one in found.items()} == {0: {"b": 1}, 1: {"late": 1}}
    # An answer that nobody waits for changes nothing.
    inspecting.answered(quick, said(quick.sent[0], "old"))
    assert (await inspecting.inspect(0.01))[0].tiers == {"b": 1}


async def test_what_a_lost_engine_said_is_over() -> None:
    inspecting, (engine,) = inspection(1)
    looking = asyncio.create_task(inspecting.inspect(60.0))
    await asyncio.sleep(0)
    inspecting.answered(engine, said(engine.sent[0]))
    assert list(await looking) == [0]
    looking = asyncio.create_task(inspecting.inspect(60.0))
    await asyncio.sleep(0)
    engine.can_serve = False
    inspecting.lost(engine)
    assert await asyncio.wait_for(looking, 30.0) == {}
    assert await inspecting.inspect(60.0) == {}
    engine.can_serve = True
    looking = asyncio.create_task(inspecting.inspect(60.0))
    await asyncio.sleep(0)
    inspecting.answered(engine, said(engine.sent[0]))  # of its life before
    inspecting.answered(engine, said(engine.sent[-1], "new"))
    assert (await looking)[0].tiers == {"new": 1}


async def test_two_who_look_at_once_share_a_question() -> None:
    inspecting, (engine,) = inspection(1)
    both = [asyncio.create_task(inspecting.inspect(60.0)) for _ in range(2)]
    await asyncio.sleep(0)
    assert len(engine.sent) == 1
    inspecting.answered(engine, said(engine.sent[0]))
    one, other = await asyncio.gather(*both)
    assert one[0] is other[0]


async def test_prefixes_are_asked_of_one_engine() -> None:
    inspecting, (_, engine) = inspection(2)
    browsing = asyncio.create_task(inspecting.browse(1, 5, 20))
    await asyncio.sleep(0.01)
    (question,) = engine.sent
    assert question == Browse(question.number, 5, 20)
    answer = Browsed(question.number, b"", b"", b"", b"", b"", b"", b"", [], [])
    inspecting.browsed(answer)
    assert await browsing is answer
    with pytest.raises(InvalidRequest, match="engine is 2; they are 0 to 1"):
        await inspecting.browse(2, -1, 20)
    engine.can_serve = False
    with pytest.raises(EngineUnavailable, match="engine 1 does not answer"):
        await inspecting.browse(1, -1, 20)


async def test_scrapers_ask_engines_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("gatewayd.engines.inspection.time", clock)
    inspecting, (engine,) = inspection(1)
    assert inspecting.machine(engine) is None
    for number in range(3):
        looking = asyncio.create_task(inspecting.refresh())
        await asyncio.sleep(0)
        if number == 0:
            machine = MachineStats(resident_bytes=5)
            inspecting.answered(engine, replace(said(engine.sent[0]), machine=machine))
        await looking
    assert len(engine.sent) == 1
    found = inspecting.machine(engine)
    assert found is not None
    assert found.resident_bytes == 5
    now += 1.0
    looking = asyncio.create_task(inspecting.refresh())
    await asyncio.sleep(0)
    assert len(engine.sent) == 2
    inspecting.lost(engine)
    await looking
    assert inspecting.machine(engine) is None
