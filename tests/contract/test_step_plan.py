"""Step plan: bound methods per step, no hook, one record."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gatewayd_hooks.caching import Drops, KnowsOrigins, Pins, TellsPins
from gatewayd_hooks.host.fence import Fence
from gatewayd_hooks.host.kinds import KINDS
from gatewayd_hooks.host.plan import StepPlan, bind
from gatewayd_hooks.preemption import LearnsCosts
from gatewayd_hooks.strategy import Kind

BOUND = {
    Kind.SCHEDULER: {"schedule": "plan", "enqueue": "enqueue", "dequeue": "dequeue"},
    Kind.PREFIX_CACHE: {
        "begin": "begin",
        "match": "match",
        "insert": "insert",
        "forget": "forget",
    },
    Kind.EVICTION: {
        "release": "release",
        "reuse": "reuse",
        "evict": "victim",
        "num_evictable": "__len__",
    },
    Kind.PREEMPTION: {"preempt": "victim"},
}
"""Kind to fields of ``StepPlan`` and the methods behind them."""
OPTIONAL: dict[str, tuple[Kind, type, str]] = {
    "cached": (Kind.EVICTION, KnowsOrigins, "cached"),
    "pin": (Kind.EVICTION, Pins, "pin"),
    "pinned": (Kind.EVICTION, TellsPins, "pinned"),
    "drop": (Kind.EVICTION, Drops, "drop"),
    "learn": (Kind.PREEMPTION, LearnsCosts, "learn"),
}
"""Fields that are None where a strategy lacks a method."""
PROCESSORS: list[Any] = ["first", "second"]
CALLED_OUTSIDE_STEPS = {"open", "close"}


def strategies() -> dict[Kind, Any]:
    """An object with the methods of each kind that an engine binds."""
    return {
        kind: type(kind.value, (), {name: lambda self, *_, **__: None for name in methods})()
        for kind, methods in ((kind, KINDS[kind].methods) for kind in BOUND)
    }


def step_plan(parts: dict[Kind, Any], *, with_cache: bool = True) -> StepPlan:
    return bind(
        scheduler=parts[Kind.SCHEDULER],
        prefix_cache=parts[Kind.PREFIX_CACHE] if with_cache else None,
        eviction=parts[Kind.EVICTION],
        preemption=parts[Kind.PREEMPTION],
        processors=PROCESSORS,
    )


def test_a_plan_holds_the_bound_methods_themselves() -> None:
    parts = strategies()
    plan = step_plan(parts)
    for kind, fields in BOUND.items():
        for field, method in fields.items():
            bound = getattr(plan, field)
            assert bound.__self__ is parts[kind]
            assert bound.__func__ is getattr(type(parts[kind]), method)
    assert plan.processors == tuple(PROCESSORS)


@pytest.mark.parametrize("kind", BOUND)
def test_every_method_of_a_step_is_in_the_plan(kind: Kind) -> None:
    assert set(BOUND[kind].values()) == set(KINDS[kind].methods) - CALLED_OUTSIDE_STEPS


def test_every_field_of_the_plan_is_checked_here() -> None:
    fields = {field.name for field in dataclasses.fields(StepPlan)}
    bound = {name for names in BOUND.values() for name in names}
    assert fields == bound | {"processors"} | set(OPTIONAL)


@pytest.mark.parametrize("field", OPTIONAL)
def test_an_optional_method_is_bound_if_it_is_there(field: str) -> None:
    kind, protocol, method = OPTIONAL[field]
    parts = strategies()
    assert getattr(step_plan(parts), field) is None
    assert callable(getattr(protocol, method))
    setattr(parts[kind], method, abs)
    assert getattr(step_plan(parts), field) is abs


def test_without_a_prefix_cache_its_methods_are_none() -> None:
    plan = step_plan(strategies(), with_cache=False)
    assert [getattr(plan, field) for field in BOUND[Kind.PREFIX_CACHE]] == [None] * 4


def test_a_plan_does_not_change() -> None:
    plan = step_plan(strategies())
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.processors = ()  # type: ignore[misc]


def test_a_strategy_is_quarantined_at_the_limit_and_only_once() -> None:
    fence = Fence(3)
    assert [fence.record("scheduler", "mine") for _ in range(5)] == [
        False,
        False,
        True,
        False,
        False,
    ]
    assert fence.faults("scheduler", "mine") == 5


def test_faults_are_counted_for_each_strategy_alone() -> None:
    fence = Fence(2)
    outcomes = [fence.record(kind, name) for kind in ("a", "b") for name in ("x", "y")]
    assert outcomes == [False] * 4
    assert fence.record("b", "x")
    assert fence.faults("a", "x") == 1


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="fault limit is 0; it must be at least 1"):
        Fence(0)
