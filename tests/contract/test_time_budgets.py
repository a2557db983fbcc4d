"""Time budgets: slow strategies are found, and a slow machine is not blamed on them."""

from __future__ import annotations

import random

import pytest

from gatewayd_hooks.host.budgets import PATIENCE
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.strategy import Kind
from tests.clock import Clock

BUDGET = 0.050


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("gatewayd_hooks.host.plugin_times.time", clock)
    return clock


def steps(
    plugin_times: PluginTimes, clock: Clock, num_steps: int, *, slow: float, rest: float
) -> int:
    """Faults of a scheduler that takes so much of each step, beside what else it takes."""
    plan = plugin_times.timed(Kind.SCHEDULER, "s", "plan", clock.spend)
    faults = 0
    for _ in range(num_steps):
        plan(slow)
        clock.spend(rest)
        plugin_times.settle_step()
        faults += len(plugin_times.take_overruns())
    return faults


@pytest.mark.parametrize("slowness", [1, 10, 100, 1000])
def test_a_machine_that_slows_everything_is_nobodys_fault(clock: Clock, slowness: int) -> None:
    plugin_times = PluginTimes(BUDGET)
    assert steps(plugin_times, clock, 200, slow=0.004 * slowness, rest=0.010 * slowness) == 0


def test_time_that_is_lost_anywhere_is_nobodys_fault(clock: Clock) -> None:
    # The machine stands still for a while, again and again, wherever a step happens to be.
    plugin_times, rng = PluginTimes(BUDGET), random.Random(1)
    for _ in range(2000):
        is_within = rng.random() < 0.3
        stall = rng.choice([0.0, 0.2, 5.0])
        slow, rest = 0.004 + stall * is_within, 0.010 + stall * (not is_within)
        assert steps(plugin_times, clock, 1, slow=slow, rest=rest) == 0


def test_a_strategy_that_takes_most_of_each_step_is_found(clock: Clock) -> None:
    plugin_times = PluginTimes(BUDGET)
    assert steps(plugin_times, clock, PATIENCE - 1, slow=0.060, rest=0.010) == 0
    assert steps(plugin_times, clock, 1, slow=0.060, rest=0.010) == 1
    assert steps(plugin_times, clock, 2 * PATIENCE, slow=0.060, rest=0.010) == 2


def test_quick_steps_make_slow_ones_good(clock: Clock) -> None:
    plugin_times = PluginTimes(BUDGET)
    for _ in range(3):
        assert steps(plugin_times, clock, PATIENCE - 1, slow=9.0, rest=0.010) == 0
        assert steps(plugin_times, clock, PATIENCE - 1, slow=0.001, rest=0.010) == 0


def test_within_its_budget_a_strategy_may_take_all_of_a_step(clock: Clock) -> None:
    assert steps(PluginTimes(BUDGET), clock, 200, slow=0.049, rest=0.0) == 0


def test_what_has_limits_of_its_own_is_timed_and_not_held_against_it(clock: Clock) -> None:
    plugin_times = PluginTimes(BUDGET)
    fill = plugin_times.timed(Kind.GUIDE, "g", "fill_many", clock.spend, has_budget=False)
    for _ in range(2 * PATIENCE):
        fill(9.0)
        plugin_times.settle_step()
    assert not plugin_times.take_overruns()
    assert plugin_times.costs()[Kind.GUIDE, "g"].seconds == pytest.approx(18.0 * PATIENCE)


def test_many_short_calls_are_one_long_one(clock: Clock) -> None:
    plugin_times = PluginTimes(BUDGET)
    release = plugin_times.timed(Kind.EVICTION, "e", "release", clock.spend)
    for _ in range(PATIENCE):
        for _ in range(100):
            release(0.001)
        plugin_times.settle_step()
    (overrun,) = plugin_times.take_overruns()
    assert (overrun.kind, overrun.name) == (Kind.EVICTION, "e")
    assert overrun.reason == (
        "e took 100 of the 100 ms of a step, as often before; its budget is 50 ms"
    )


@pytest.mark.parametrize(
    ("works", "waits", "is_fault"),
    [
        (0.060, 0.0, True),  # it computes for too long
        (0.060, 0.3, True),  # and has to wait for the processor as well
        (0.001, 0.2, True),  # it sleeps, or asks somebody far away
        (0.020, 0.2, False),  # others have the processor for most of the time
        (0.040, 0.0, False),
    ],
)
def test_calls_outside_of_steps_answer_for_their_own_work_and_sleep(
    clock: Clock, works: float, waits: float, is_fault: bool
) -> None:
    plugin_times = PluginTimes(BUDGET)

    def route() -> None:
        clock.spend(works)
        clock.wait(waits)

    ask = plugin_times.timed(Kind.ROUTER, "r", "route", route)
    for _ in range(PATIENCE):
        began = clock.thread_time()
        ask()
        plugin_times.settle_call(Kind.ROUTER, clock.thread_time() - began)
    assert bool(plugin_times.take_overruns(Kind.ROUTER)) is is_fault
    assert plugin_times.take_overruns(Kind.OBSERVER) == []


def test_what_one_strategy_spends_in_another_is_the_others(clock: Clock) -> None:
    plugin_times = PluginTimes(1.0)
    inner = plugin_times.timed(Kind.PREFIX_CACHE, "p", "match", clock.spend)

    def plan() -> None:
        clock.spend(1.0)
        inner(0.25)
        inner(0.5)
        clock.spend(2.0)

    plugin_times.timed(Kind.SCHEDULER, "s", "plan", plan)()
    costs = plugin_times.costs()
    assert costs[Kind.PREFIX_CACHE, "p"].seconds == 0.75
    assert costs[Kind.PREFIX_CACHE, "p"].longest == 0.5
    assert costs[Kind.SCHEDULER, "s"].seconds == 3.0
    assert plugin_times.current is None
