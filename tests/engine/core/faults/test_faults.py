"""Faults: a bad request fails alone; a broken strategy loses no request."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gatewayd_hooks.scheduling import Plan
from gatewayd_hooks.strategy import Kind
from tests.engine.core.prompts import PROMPTS, answers, runner_of

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]


def test_an_exception_over_one_request_fails_it_alone(
    make_engine: Make, undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    runner = runner_of(engine)
    run = runner.run
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in PROMPTS]

    def failing(batch: Any) -> Any:
        if ids[3] in batch.sequences.tolist():
            raise RuntimeError("this one is bad")
        return run(batch)

    engine.step()
    engine.step()
    monkeypatch.setattr(type(runner), "run", lambda self, batch: failing(batch))
    done = engine.run()
    assert done[ids[3]].finished.error == ("internal_error", "RuntimeError: this one is bad")
    for k, i in enumerate(ids):
        if k != 3:
            assert done[i].tokens == undisturbed[k]


def test_faults_common_to_all_are_the_engines_own(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    for p in PROMPTS:
        engine.submit(p, max_tokens=12)

    def broken(self: Any, batch: Any) -> Any:
        raise RuntimeError("out of order")

    monkeypatch.setattr(type(runner_of(engine)), "run", broken)
    with pytest.raises(RuntimeError, match="out of order"):
        engine.step()
    monkeypatch.undo()


def untyped_plan(slots: Any, tokens: Any) -> Plan:
    """A plan of whatever a careless plugin returns."""
    return Plan(slots, tokens)


def interrupted() -> None:
    """As if somebody had pressed Ctrl-C, but nobody has."""
    raise KeyboardInterrupt


BREAKS: dict[str, tuple[Kind, str, Callable[..., Any]]] = {
    "a scheduler raises": (Kind.SCHEDULER, "plan", lambda view: 1 / 0),
    "a scheduler grants too much": (
        Kind.SCHEDULER,
        "plan",
        lambda view: Plan(np.zeros(1, np.int32), np.full(1, 9999, np.int32)),
    ),
    "a scheduler plans nothing": (
        Kind.SCHEDULER,
        "plan",
        lambda view: Plan(np.zeros(0, np.int32), np.zeros(0, np.int32)),
    ),
    "a scheduler grants a slot twice": (
        Kind.SCHEDULER,
        "plan",
        lambda view: Plan(np.zeros(2, np.int32), np.ones(2, np.int32)),
    ),
    "a scheduler grants a slot that is not there": (
        Kind.SCHEDULER,
        "plan",
        lambda view: Plan(np.array([200], np.int32), np.ones(1, np.int32)),
    ),
    "a scheduler returns nothing": (Kind.SCHEDULER, "plan", lambda view: None),
    "a scheduler returns lists": (Kind.SCHEDULER, "plan", lambda view: untyped_plan([0], [1])),
    "a scheduler returns floats": (
        Kind.SCHEDULER,
        "plan",
        lambda view: untyped_plan(np.zeros(1), np.ones(1)),
    ),
    "a scheduler calls sys.exit": (Kind.SCHEDULER, "plan", lambda view: sys.exit(3)),
    "a preemption is interrupted": (
        Kind.PREEMPTION,
        "victim",
        lambda view, candidates: interrupted(),
    ),
    "a prefix cache wants out": (Kind.PREFIX_CACHE, "match", lambda trail: sys.exit("no")),
    "an eviction returns no page": (Kind.EVICTION, "victim", lambda: None),
    "a preemption returns nothing": (Kind.PREEMPTION, "victim", lambda view, candidates: None),
    "a prefix cache matches nothing at all": (Kind.PREFIX_CACHE, "match", lambda trail: None),
    "a prefix cache inserts nothing at all": (
        Kind.PREFIX_CACHE,
        "insert",
        lambda trail, tokens, pages: None,
    ),
    "a scheduler cannot dequeue": (Kind.SCHEDULER, "dequeue", lambda slot: 1 / 0),
    "an eviction raises": (Kind.EVICTION, "victim", lambda: 1 / 0),
    "an eviction returns a page in use": (Kind.EVICTION, "victim", lambda: 0),
    "an eviction cannot release": (Kind.EVICTION, "release", lambda page: 1 / 0),
    "an eviction cannot reuse": (Kind.EVICTION, "reuse", lambda page: 1 / 0),
    "a preemption chooses no victim": (
        Kind.PREEMPTION,
        "victim",
        lambda view, candidates: type("V", (), {"slot": 250}),
    ),
    "a prefix cache cannot match": (Kind.PREFIX_CACHE, "match", lambda trail: 1 / 0),
    "a prefix cache matches a wrong page": (Kind.PREFIX_CACHE, "match", lambda trail: [5, 77]),
    "a prefix cache cannot begin": (Kind.PREFIX_CACHE, "begin", lambda tokens, salt: 1 / 0),
    "a prefix cache cannot insert": (
        Kind.PREFIX_CACHE,
        "insert",
        lambda trail, tokens, pages: 1 / 0,
    ),
    "a prefix cache cannot forget": (Kind.PREFIX_CACHE, "forget", lambda page: 1 / 0),
}


class Clock:
    """A time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_a_scheduler_may_hold_back_for_a_while_however_many_steps_that_is(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, clock = make_engine(), Clock()
    monkeypatch.setattr("gatewayd_engine.scheduling.plan_check.time", clock)
    nothing = Plan(np.zeros(0, np.int32), np.zeros(0, np.int32))
    plan = dataclasses.replace(engine.core.strategies.plan, schedule=lambda view: nothing)
    engine.core.strategies.plan = plan
    (first,) = engine.submit(PROMPTS[0], max_tokens=2)
    for _ in range(1000):
        engine.step()
    clock.now += 0.9
    engine.step()
    # Time without anybody who waits does not count.
    engine.core.abort([first])
    clock.now += 60
    (second,) = engine.submit(PROMPTS[0], max_tokens=2)
    engine.step()
    clock.now += 0.9
    engine.step()
    assert engine.core.stats.faults == 0
    clock.now += 0.2
    engine.step()
    assert engine.core.stats.faults == 1
    assert len(engine.run()[second].tokens) == 2


@pytest.mark.parametrize("what", BREAKS)
@pytest.mark.parametrize("times", [1, 10_000])
def test_a_broken_strategy_loses_nothing(
    make_engine: Make,
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    times: int,
) -> None:
    check_breaks(make_engine, undisturbed, monkeypatch, what, times)


@pytest.mark.usefixtures("overlapping")
@pytest.mark.parametrize(
    "what",
    [
        "a scheduler raises",
        "a preemption is interrupted",
        "a prefix cache cannot insert",
        "an eviction cannot release",
    ],
)
def test_nor_does_one_while_steps_overlap(
    make_engine: Make, undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    check_breaks(make_engine, undisturbed, monkeypatch, what, 2)


def check_breaks(
    make_engine: Make,
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    times: int,
) -> None:
    """A strategy breaks so many times, and nobody's answer is another."""
    kind, method, broken = BREAKS[what]
    monkeypatch.setattr("gatewayd_engine.scheduling.plan_check.MAX_IDLE_SECONDS", 0.001)
    # Few pages, so that eviction and preemption have something to do.
    engine = make_engine(page_size=4, kv_pages=104, max_batch_tokens=96)
    strategies = engine.core.strategies
    left = times

    def sabotaged(strategy: Any) -> Any:
        sound = getattr(type(strategy), method)

        def method_(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left > 0:
                left -= 1
                return broken(*args, **kwargs)
            return sound(self, *args, **kwargs)

        kind_of = type(strategy)
        strategy.__class__ = type("Broken", (kind_of,), {"__slots__": (), method: method_})
        return strategy

    open_sound = strategies.opener.open
    is_default = False

    def open_(opened: Kind, choice: Any) -> Any:
        strategy = open_sound(opened, choice)
        return sabotaged(strategy) if opened is kind and not is_default else strategy

    fall_back = strategies.fall_back

    def falling(fallen: Kind, error: BaseException) -> None:
        nonlocal is_default
        is_default = True
        fall_back(fallen, error)
        is_default = False

    monkeypatch.setattr(strategies, "fall_back", falling)
    monkeypatch.setattr(strategies.opener, "open", open_)
    strategies.bind_configured(kind)
    engine.core._placement.rebuild(kind)

    assert answers(engine) == undisturbed
    assert answers(engine) == undisturbed
    assert engine.core.stats.faults >= 1 or (what == "a scheduler plans nothing" and times == 1)
    engine.core.check()
