"""Residency of models: memory, pins, busy models, thrash protection, forecasts."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewayd.catalogue.memory_budget import BudgetExceeded
from gatewayd.errors import QueueFull
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.targets.residency import ResidentModel
from gatewayd_residency_cost.config import CostResidencyConfig
from gatewayd_residency_cost.strategy import CheapestToMiss
from gatewayd_residency_lru.config import LruResidencyConfig
from gatewayd_residency_lru.strategy import LeastRecentlyUsed
from gatewayd_residency_schedule.config import ScheduleResidencyConfig
from gatewayd_residency_schedule.strategy import Scheduled
from gatewayd_residency_schedule.windows import parse_window
from tests.gatewayd.catalogue.sleeping_fleets import Now, residency_of

SIZES = {"a": 3, "b": 4, "c": 5, "d": 2}


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(sorted(SIZES))),
        st.tuples(st.just("finish"), st.sampled_from(sorted(SIZES))),
        st.tuples(st.just("load"), st.just("")),
        st.tuples(st.just("wait"), st.just("")),
    ),
    max_size=60,
)


@given(events=_EVENTS, memory=st.integers(8, 14), pinned=st.sampled_from(["", "d", "a"]))
@settings(max_examples=150, deadline=None)
def test_memory_is_never_exceeded_and_every_wanted_model_is_loaded_in_the_end(
    events: list[tuple[str, str]], memory: int, pinned: str
) -> None:
    async def run() -> None:
        now = Now()
        names = [pinned] if pinned else []
        residency, fleets, models = residency_of(
            SIZES, memory, clock=now, pinned=names, minimum=1.0
        )

        def check() -> None:
            # By the fleets themselves: what is loaded, loads or has not ended yet.
            held = sum(
                SIZES[name]
                for name, fleet in fleets.items()
                if fleet.is_resident or not fleet.is_asleep
            )
            assert held <= memory
            if pinned:
                assert models[pinned].unloads == 0

        async def step(seconds: float) -> None:
            now.seconds += seconds
            residency.advance()
            await settle()
            check()

        for event, name in events:
            if event == "ask":
                fleets[name].submit()
                if fleets[name].is_asleep:
                    residency.demand(models[name])
            elif event == "finish":
                fleets[name].finish()
            elif event == "load":
                for fleet in fleets.values():
                    fleet.tick()
            await step(1.0)
        for _ in range(40):
            for fleet in fleets.values():
                fleet.tick()
                fleet.finish()
            await step(5.0)
        # No request waits for ever, whatever came before.
        assert all(not fleet.num_held for fleet in fleets.values())

    asyncio.run(run())


async def test_the_least_recently_used_idle_model_goes_and_a_busy_one_stays() -> None:
    now = Now()
    residency, fleets, models = residency_of({"a": 1, "b": 1, "c": 1}, 2, clock=now)
    for name in "ab":
        residency.load(models[name])
        fleets[name].tick()
    fleets["a"].submit()
    residency.advance()
    now.seconds += 60
    fleets["b"].submit()
    residency.advance()
    fleets["b"].finish()
    fleets["c"].submit()
    residency.demand(models["c"])
    residency.advance()
    await settle()
    # `a` was used longest ago, but its request still runs.
    assert [fleets[name].is_resident for name in "abc"] == [True, False, False]
    residency.advance()
    assert not fleets["c"].is_asleep


async def test_after_its_patience_a_model_takes_the_place_of_a_busy_one_without_harm() -> None:
    now = Now()
    residency, fleets, models = residency_of({"a": 1, "b": 1}, 1, clock=now, patience=3.0)
    residency.load(models["a"])
    fleets["a"].tick()
    fleets["a"].submit()
    residency.advance()
    residency.demand(models["b"], is_firm=True)
    now.seconds += 2.9
    residency.advance()
    await settle()
    assert not fleets["a"].is_asleep
    now.seconds += 0.2
    residency.advance()
    await settle()
    # It takes no more requests, and its own goes on.
    assert fleets["a"].is_asleep
    assert fleets["a"].is_resident
    assert fleets["a"].num_running == 1
    fleets["a"].submit()
    assert fleets["a"].num_held == 1
    residency.demand(models["a"])
    fleets["a"].finish()
    await settle()
    residency.advance()
    assert not fleets["b"].is_asleep
    fleets["b"].tick()
    now.seconds += 10
    residency.advance()
    await settle()
    residency.advance()
    assert not fleets["a"].is_asleep, "the request that waited for it is served, too"


async def test_a_model_stays_for_its_minimum() -> None:
    now = Now()
    residency, fleets, models = residency_of({"a": 1, "b": 1}, 1, clock=now, minimum=10.0)
    residency.load(models["a"])
    fleets["a"].tick()
    residency.advance()
    residency.demand(models["b"], is_firm=True)
    now.seconds += 9.5
    residency.advance()
    await settle()
    assert not fleets["a"].is_asleep
    now.seconds += 1
    residency.advance()
    await settle()
    assert fleets["a"].is_asleep


async def test_a_refused_request_is_told_when_the_model_is_loaded() -> None:
    now = Now()
    residency, fleets, models = residency_of({"a": 1, "b": 1}, 1, clock=now)
    for name in "ab":
        models[name].load_seconds = 40.0
    residency.load(models["a"])
    residency.demand(models["b"], is_firm=True)
    now.seconds += 15
    residency.advance()
    backlog = fleets["a"].backlog
    backlog.num_requests = 10
    with pytest.raises(QueueFull) as full:
        backlog.check(1)
    assert full.value.retry_after == pytest.approx(25)
    assert fleets["b"].backlog.load_seconds == pytest.approx(40)
    fleets["a"].tick()
    residency.advance()
    assert fleets["a"].backlog.load_seconds == 0
    assert models["a"].load_seconds == pytest.approx(15)


def test_a_model_that_never_fits_is_refused_with_the_way_out() -> None:
    with pytest.raises(BudgetExceeded, match=r"the model b needs .* GiB, and \[catalogue\] memory"):
        residency_of({"a": 1 << 30, "b": 3 << 30}, 2 << 30, clock=Now())
    with pytest.raises(BudgetExceeded, match=r"beside 1\.00 GiB of pinned models"):
        residency_of({"a": 1 << 30, "b": 2 << 30}, 5 << 29, clock=Now(), pinned=["a"])


class Wrong(CheapestToMiss):
    """Names a model that may not be unloaded."""

    def evict(self, wanted: str, models: object, unix: float) -> str:
        return "nothing"


async def test_a_wrong_strategy_is_replaced_by_the_least_recently_used() -> None:
    now = Now()
    residency, fleets, models = residency_of(
        {"a": 1, "b": 1}, 1, clock=now, strategy=Wrong(CostResidencyConfig())
    )
    residency.load(models["a"])
    fleets["a"].tick()
    residency.advance()
    residency.demand(models["b"], is_firm=True)
    residency.advance()
    await settle()
    assert fleets["a"].is_asleep


def resident(name: str, **values: float) -> ResidentModel:
    base = {"memory": 10, "load_seconds": 1.0, "num_requests": 1, "request_rate": 1.0}
    return ResidentModel(name=name, **{**base, "idle_seconds": 0.0, "num_running": 0, **values})  # type: ignore[arg-type]


def test_cost_unloads_what_is_cheap_to_miss() -> None:
    cost = CheapestToMiss(CostResidencyConfig())
    slow, rare = resident("slow", load_seconds=50.0), resident("rare", request_rate=0.01)
    assert cost.evict("x", [slow, rare], 0.0) == "rare"
    large = resident("large", memory=1000, load_seconds=2.0)
    assert cost.evict("x", [resident("small"), large], 0.0) == "large"
    same = CheapestToMiss(CostResidencyConfig(by_memory=False))
    assert same.evict("x", [resident("small"), large], 0.0) == "small"


MONDAY_NOON = 1_700_481_600.0  # 2023-11-20, a Monday, at 12:00 UTC


def test_a_schedule_protects_and_prefers_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    strategy = Scheduled(
        ScheduleResidencyConfig(windows=["a 08:00-18:00 mon-fri", "b 22:00-06:00"])
    )
    strategy.open(GatewayResources(model="a", num_replicas=1))
    models = [resident("a", idle_seconds=500.0), resident("b", idle_seconds=5.0)]
    assert strategy.preferred(MONDAY_NOON) == ["a"]
    assert strategy.evict("c", models, MONDAY_NOON) == "b"
    assert strategy.evict("c", models, MONDAY_NOON + 12 * 3600) == "a"
    assert strategy.preferred(MONDAY_NOON + 17 * 3600) == ["b"]
    saturday = MONDAY_NOON + 5 * 86_400
    assert strategy.preferred(saturday) == []


@pytest.mark.parametrize("text", ["a", "a 8-9", "a 08:00", "a 08:70-09:00", "a 8:00-9:00 someday"])
def test_a_window_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no window: write MODEL HH:MM-HH:MM"):
        parse_window(text)


def measured(bytes_: int) -> Any:
    """A status by which an engine takes so much."""
    return lambda: [SimpleNamespace(machine=SimpleNamespace(resident_bytes=bytes_, device_used=0))]


async def test_a_model_that_outgrew_the_budget_is_refused_and_the_others_go_on() -> None:
    now, mib = Now(), 1 << 20
    residency, fleets, models = residency_of(
        {"a": 90 * mib, "b": 40 * mib, "c": 40 * mib}, 100 * mib, clock=now
    )
    residency.load(models["a"])
    fleets["a"].tick()
    fleets["a"].status = measured(110 * mib)  # type: ignore[method-assign]
    residency.advance()
    fleets["a"].status = lambda: ()  # type: ignore[method-assign]
    for name in "bac":
        fleets[name].submit()
        residency.demand(models[name])
        for _ in range(20):
            now.seconds += 5
            residency.advance()
            await settle()
            for fleet in fleets.values():
                fleet.tick()
                fleet.finish()
    assert [fleets[name].num_held for name in "abc"] == [0, 0, 0]
    (said,) = fleets["a"].refusals
    assert "the model a needs 0.12 GiB" in said
    assert not fleets["b"].refusals + fleets["c"].refusals


async def test_a_demand_whose_clients_have_gone_unloads_nothing() -> None:
    now = Now()
    residency, fleets, models = residency_of({"a": 1, "b": 1}, 1, clock=now)
    residency.load(models["a"])
    fleets["a"].tick()
    residency.advance()
    now.seconds += 60
    fleets["b"].submit()
    residency.demand(models["b"])
    fleets["b"].num_held = 0
    residency.advance()
    await settle()
    assert fleets["a"].is_resident
    assert fleets["b"].is_asleep


async def test_what_an_operator_has_unloaded_stays_unloaded() -> None:
    now = Now()
    strategy = Scheduled(ScheduleResidencyConfig(windows=["a 00:00-24:00"]))
    residency, fleets, models = residency_of({"a": 1}, 1, clock=now, strategy=strategy)
    residency.load(models["a"])
    fleets["a"].tick()
    fleets["a"].is_asleep, fleets["a"].is_resident, fleets["a"].is_unloaded = True, False, True
    fleets["a"].submit()
    residency.demand(models["a"])
    now.seconds += 5
    residency.advance()
    assert fleets["a"].is_asleep
    fleets["a"].is_unloaded = False
    now.seconds += 5
    residency.advance()
    assert not fleets["a"].is_asleep


async def test_another_idle_model_goes_while_a_busy_one_still_ends() -> None:
    now = Now()
    residency, fleets, models = residency_of({"a": 1, "b": 1, "c": 1}, 2, clock=now)
    for name in "ab":
        residency.load(models[name])
        fleets[name].tick()
        fleets[name].submit()
    residency.advance()
    residency.demand(models["c"], is_firm=True)
    now.seconds += 3
    residency.advance()
    await settle()
    assert [fleets[name].is_asleep for name in "ab"] == [True, False]
    fleets["b"].finish()
    residency.advance()
    await settle()
    residency.advance()
    assert not fleets["c"].is_asleep
    assert fleets["a"].num_running == 1


class Broken(LeastRecentlyUsed):
    """Prefers what is no name."""

    def preferred(self, unix: float) -> Any:
        return [["a"]]


async def test_a_strategy_that_prefers_no_names_stops_nothing() -> None:
    now = Now()
    residency, fleets, models = residency_of(
        {"a": 1}, 1, clock=now, strategy=Broken(LruResidencyConfig())
    )
    running = asyncio.create_task(residency.run())
    await asyncio.sleep(0.01)
    residency.demand(models["a"], is_firm=True)
    async with asyncio.timeout(5):
        while fleets["a"].is_asleep:
            await asyncio.sleep(0.01)
    running.cancel()
