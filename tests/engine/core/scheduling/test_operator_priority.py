"""Operator priority changes: honoured by every scheduler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import Bump
from gatewayd_hooks.scheduling import Priority
from gatewayd_hooks.strategy import Kind
from tests.engine.core.conftest import Harness, MakeEngine
from tests.engine.core.hot_swaps import swap

pytestmark = pytest.mark.usefixtures("small_model")

ALONE: dict[str, Any] = {"max_running": 1, "kv_pages": 128}


def prompt(number: int, length: int = 20) -> list[int]:
    return [3900 + number, *([9] * (length - 1))]


def order(engine: Harness, ids: list[int]) -> list[int]:
    """Who is admitted after whom."""
    found: list[int] = []
    while engine.core.has_work:
        found += [admitted.sequence for admitted in engine.step().admitted]
        engine.core.check()
    return [i for i in found if i in ids]


def crowd(engine: Harness, *classes: Priority, **fields: Any) -> list[int]:
    """One that has the only row, and others that wait for it."""
    engine.submit(prompt(99), max_tokens=3, ignore_eos=True)
    engine.step()
    return [
        engine.submit(prompt(i), max_tokens=2, ignore_eos=True, priority=one, **fields)[0]
        for i, one in enumerate(classes)
    ]


@pytest.mark.parametrize("scheduler", ["fcfs", "priority", "fair", "slo"])
@pytest.mark.parametrize("priority", [Priority.STANDARD, Priority.BATCH])
def test_a_waiting_one_goes_to_the_front_of_its_class(
    make_engine: MakeEngine, scheduler: str, priority: Priority
) -> None:
    engine = make_engine(**ALONE, scheduler=StrategyChoice(scheduler))
    a, b, c, d = crowd(engine, *[priority] * 4)
    engine.core.operator.bump(Bump([c]))
    assert order(engine, [a, b, c, d]) == [c, a, b, d]


@pytest.mark.parametrize("scheduler", ["priority", "fair", "slo"])
def test_a_waiting_one_is_served_as_one_of_its_new_class(
    make_engine: MakeEngine, scheduler: str
) -> None:
    engine = make_engine(**ALONE, scheduler=StrategyChoice(scheduler))
    standard, low = Priority.STANDARD, Priority.BATCH
    a, b, c, d = crowd(engine, standard, low, low, standard)
    engine.core.operator.bump(Bump([c], Priority.REALTIME, 0.5))
    engine.core.operator.bump(Bump([a], Priority.BATCH))
    # By weights a lower class may have a turn before the last one of a higher class.
    allowed = [[c, d, a, b], *([[c, a, d, b]] if scheduler == "priority" else [])]
    assert order(engine, [a, b, c, d]) in allowed


def test_the_first_of_a_lower_class_does_not_overtake_a_higher_one(make_engine: MakeEngine) -> None:
    for scheduler in ("slo", "priority"):
        engine = make_engine(**ALONE, scheduler=StrategyChoice(scheduler))
        ids = crowd(engine, Priority.REALTIME, Priority.BATCH, Priority.BATCH)
        engine.core.operator.bump(Bump(ids[2:]))
        assert order(engine, ids) == [ids[0], ids[2], ids[1]]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("scheduler", ["fcfs", "priority", "fair", "slo"])
def test_of_two_that_run_the_bumped_one_is_done_first(
    make_engine: MakeEngine, scheduler: str, which: int
) -> None:
    both = StrategyChoice("fcfs", {"max_prefill_chunk": 32})
    engine = make_engine(scheduler=both, max_batch_tokens=64, kv_pages=128, prefix_cache=None)
    ids = [engine.submit(prompt(i, 300), max_tokens=1)[0] for i in range(2)]
    engine.step()
    engine.step()
    view = engine.core._queue.view
    assert view.num_computed[view.running].tolist() == [64, 64]
    swap(engine, Kind.SCHEDULER, StrategyChoice(scheduler))
    engine.core.operator.bump(Bump([ids[which]]))
    done: list[int] = []
    while engine.core.has_work:
        done += [finished.sequence for finished in engine.step().finished]
    assert done == [ids[which], ids[1 - which]]


def test_it_stays_first_when_it_has_to_wait_again_and_under_another_scheduler(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(**ALONE)
    a, b, c = crowd(engine, *[Priority.STANDARD] * 3)
    engine.core.operator.bump(Bump([c]))
    engine.core.operator.pause_sequences([c])
    engine.step()
    engine.core.resume([c])
    swap(engine, Kind.SCHEDULER, StrategyChoice("priority"))
    assert order(engine, [a, b, c]) == [c, a, b]


def test_a_sibling_that_waits_for_the_prompt_changes_its_class_too(make_engine: MakeEngine) -> None:
    engine = make_engine(scheduler=StrategyChoice("priority"), max_batch_tokens=32)
    ids = engine.submit(prompt(1, 100), n=2, max_tokens=4, ignore_eos=True)
    engine.step()
    engine.core.operator.bump(Bump(ids, Priority.REALTIME, 1.0))
    while len(engine.core._queue) < 2:
        engine.step()
    view = engine.core._queue.view
    slots = [sequence.slot for sequence in engine.core._queue]
    assert view.priority[slots].tolist() == [Priority.REALTIME] * 2
    assert np.isfinite(view.deadline[slots]).all()
    engine.run()


def test_a_class_that_does_not_exist_and_unknown_ids_change_nothing(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(**ALONE)
    a, b = crowd(engine, Priority.STANDARD, Priority.STANDARD)
    engine.core.operator.bump(Bump([b, 77], 9))
    engine.core.operator.bump(Bump([77]))
    assert order(engine, [a, b]) == [a, b]
