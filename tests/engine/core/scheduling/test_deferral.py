"""Deferral: deferred sequences leave their tokens and slots to others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.scheduling import deferral
from gatewayd_hooks.helpers.waiting import WaitingLine
from gatewayd_hooks.scheduling import Priority
from tests.engine.core.tiered_engines import disk, evict_all, flush, held_reads

Make = Callable[..., Any]
SHARED = [300 + i * 7 % 3001 for i in range(1000)]
FCFS = StrategyChoice("fcfs", {"max_prefill_chunk": 64})


def unrelated(number: int, length: int = 64) -> list[int]:
    """A prompt that begins like no other."""
    return [4000 + number, *([9] * (length - 1))]


def test_tokens_that_the_held_leave_go_to_others(make_engine: Make) -> None:
    engine = make_engine(scheduler=FCFS, max_batch_tokens=256, kv_pages=2048)
    (leader,) = engine.submit(SHARED, max_tokens=1)
    engine.step()
    behind = [engine.submit([*SHARED, i], max_tokens=1)[0] for i in range(2, 22)]
    others = [engine.submit(unrelated(i), max_tokens=1)[0] for i in range(12)]
    for step in range(4):
        output = engine.step()
        assert [a.sequence for a in output.admitted] == others[3 * step : 3 * step + 3]
        assert engine.core.stats.step_tokens == 256
    answers = engine.run()
    assert answers[leader].finished
    # Nobody computes again what is shared: 62 full pages, and the one that the leader leaves.
    assert engine.core.stats.computed_tokens == 1000 + 20 * 1 + 12 * 64
    assert all(answers[i].admitted.cached_tokens == 1000 for i in behind)


def test_a_burst_is_held_as_a_whole(make_engine: Make) -> None:
    """All come at once: the first step finds out, and every one after it is full."""
    engine = make_engine(scheduler=FCFS, max_batch_tokens=256, kv_pages=2048)
    for i in range(2, 102):
        engine.submit([*SHARED, i], max_tokens=1)
    others = [engine.submit(unrelated(i), max_tokens=1)[0] for i in range(12)]
    engine.step()
    assert engine.core.stats.step_tokens == 64
    for step in range(4):
        output = engine.step()
        assert [a.sequence for a in output.admitted] == others[3 * step : 3 * step + 3]
        assert engine.core.stats.step_tokens == 256
    engine.run()


def test_a_crowd_too_large_to_look_at_is_held_in_parts(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferral, "_MOST_ALIKE", 16)
    engine = make_engine(scheduler=FCFS, max_batch_tokens=256, kv_pages=2048)
    for i in range(2, 42):
        engine.submit([*SHARED, i], max_tokens=1)
    (other,) = engine.submit(unrelated(0), max_tokens=1)
    steps = 0
    while engine.answers[other].admitted is None:
        engine.step()
        steps += 1
    assert steps == 3
    engine.run()


def test_nobody_is_held_for_longer_than_what_is_shared_takes(make_engine: Make) -> None:
    engine = make_engine(scheduler=FCFS, max_batch_tokens=256, kv_pages=2048)
    engine.submit(SHARED, max_tokens=1)
    engine.step()
    (short,) = engine.submit(SHARED[:200] + [5] * 40, max_tokens=1)
    (long,) = engine.submit(SHARED[:500] + [6] * 40, max_tokens=1)
    admitted = {}
    for step in range(2, 30):
        admitted.update({a.sequence: (step, a.cached_tokens) for a in engine.step().admitted})
    # In step n the leader has n - 1 chunks of 64: 192 of 200 tokens, and all 500 of 512.
    assert admitted == {short: (4, 192), long: (9, 500)}


def test_nobody_waits_for_a_lower_class(make_engine: Make) -> None:
    """It gets a small share of each step: whoever waited for it would be overtaken by many."""
    engine = make_engine(
        scheduler=StrategyChoice("priority"), max_batch_tokens=128, kv_pages=4096, max_running=16
    )
    engine.submit([*SHARED, 7], max_tokens=1, priority=Priority.BATCH)
    engine.step()
    engine.submit(unrelated(60, 512), max_tokens=1, priority=Priority.REALTIME)
    (urgent,) = engine.submit([*SHARED, 9], max_tokens=1, priority=Priority.REALTIME)
    later, steps = [], 0
    while not engine.answers[urgent].tokens:
        if steps % 4 == 0:
            prompt = unrelated(steps, 512)
            later += engine.submit(prompt, max_tokens=1, priority=Priority.REALTIME)
        engine.step()
        steps += 1
    # 1,512 tokens come first, at 10 of 11 parts of 128 a step.
    assert steps <= 14
    assert sum(bool(engine.answers[i].tokens) for i in later) == 0
    engine.run()


def test_a_lower_class_waits_for_a_higher_one(make_engine: Make) -> None:
    engine = make_engine(scheduler=StrategyChoice("priority"), max_batch_tokens=128, kv_pages=2048)
    for number in (Priority.REALTIME, Priority.STANDARD, Priority.BATCH):
        engine.submit(SHARED, max_tokens=1, priority=number)
    engine.run()
    assert engine.core.stats.computed_tokens == 1000 + 2 * 1


def test_a_burst_of_alike_ones_is_no_lack_of_pages(make_engine: Make) -> None:
    """Two that begin alike come in each step: the second is held only once it is granted."""
    engine = make_engine(
        scheduler=StrategyChoice("priority"), max_batch_tokens=64, kv_pages=4096, max_running=32
    )
    engine.submit(SHARED, max_tokens=1, priority=Priority.BATCH)
    engine.step()
    came = []
    for i in range(12):
        for last in (5, 6):
            prompt = [*unrelated(i, 40), last]
            came += engine.submit(prompt, max_tokens=1, priority=Priority.REALTIME)
        engine.step()
        assert not engine.core._queue.view.unplaced
    assert sum(bool(engine.answers[i].tokens) for i in came) == 23
    engine.run()


def test_the_view_names_those_for_whom_there_were_no_pages(make_engine: Make) -> None:
    engine = make_engine(max_batch_tokens=2048, kv_pages=64)
    view = engine.core._queue.view
    engine.submit(unrelated(0, 500), max_tokens=8, ignore_eos=True)
    (large,) = engine.submit(unrelated(1, 600), max_tokens=8)
    engine.step()
    assert view.unplaced == {engine.core._queue.find(large).slot}
    engine.run()
    assert not view.unplaced


def test_a_scheduler_that_grants_the_held_loses_the_tokens_and_nothing_else(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plugins made for an earlier contract know nothing of it."""
    engine = make_engine(scheduler=FCFS, max_batch_tokens=256, kv_pages=2048)
    monkeypatch.setattr(WaitingLine, "without", lambda self, held: iter(self))
    ids = [engine.submit([*SHARED, i], max_tokens=2, ignore_eos=True)[0] for i in range(2, 8)]
    answers = engine.run()
    assert engine.core.stats.computed_tokens == 1000 + 1 + 5 * (1001 - 992) + 6
    assert all(len(answers[i].tokens) == 2 for i in ids)


def test_the_view_names_the_held_while_they_are(make_engine: Make) -> None:
    engine = make_engine(scheduler=FCFS, max_batch_tokens=256, kv_pages=2048)
    view = engine.core._queue.view
    engine.submit(SHARED, max_tokens=1)
    (second,) = engine.submit(SHARED, max_tokens=1)
    (third,) = engine.submit(SHARED, max_tokens=1)
    engine.step()
    engine.step()
    assert view.held == {engine.core._queue.find(i).slot for i in (second, third)}
    engine.core.abort([second])
    engine.step()
    assert view.held == {engine.core._queue.find(third).slot}
    engine.run()
    assert not view.held


def test_a_slot_used_again_is_not_held(make_engine: Make) -> None:
    engine = make_engine(scheduler=FCFS, max_batch_tokens=256, kv_pages=2048)
    engine.submit(SHARED, max_tokens=1)
    (behind,) = engine.submit(SHARED, max_tokens=1)
    engine.step()
    engine.step()
    slot = engine.core._queue.find(behind).slot
    engine.core.abort([behind])
    (other,) = engine.submit(unrelated(0), max_tokens=4, ignore_eos=True)
    assert engine.core._queue.find(other).slot == slot
    assert [a.sequence for a in engine.step().admitted] == [other]
    engine.run()


def test_looking_again_costs_little_however_many_are_held(make_engine: Make) -> None:
    """One pass over arrays: nobody's prompt is looked at again."""
    engine = make_engine(scheduler=FCFS, max_batch_tokens=256, kv_pages=2048)
    engine.submit(SHARED, max_tokens=1)
    engine.step()
    for i in range(200):
        engine.submit([*SHARED, i + 2], max_tokens=1)
    engine.step()
    queue, prefixes = engine.core._queue, engine.core._placement.prefixes
    assert len(queue.view.held) == 200
    asked = []
    prefixes.match = lambda *of: asked.append(of)
    engine.step()
    assert len(queue.view.held) == 200
    assert not asked
    assert (queue.waits[list(queue.view.held)] == 2).all()
    assert queue.waits.dtype == np.int32


def test_those_who_wait_for_a_tier_leave_the_step_to_others(
    make_engine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: dict[str, Any] = {"max_batch_tokens": 64, "kv_pages": 80}
    engine = make_engine(kv_tiers=[disk(tmp_path)], **fields)
    prompt = [*SHARED[:160], *unrelated(1, 100)]
    engine.generate(SHARED[:161], max_tokens=1)
    evict_all(engine)
    flush(engine)
    may_read = held_reads(monkeypatch)
    (waits,) = engine.submit(prompt, max_tokens=4, ignore_eos=True)
    (other,) = engine.submit(unrelated(2), max_tokens=4, ignore_eos=True)
    assert [a.sequence for a in engine.step().admitted] == [other]
    assert engine.core.stats.step_tokens == 64
    assert engine.core._queue.view.held == {engine.core._queue.find(waits).slot}
    may_read.set()
    answers = engine.run()
    assert answers[waits].admitted.cached_tokens == 160
    wanted = make_engine(**fields).generate(prompt, max_tokens=4, ignore_eos=True)
    assert answers[waits].tokens == wanted


def test_however_many_wait_for_a_tier_all_are_held(
    make_engine: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferral, "_MOST_ASKED", 2)
    engine = make_engine(kv_tiers=[disk(tmp_path)], max_batch_tokens=64, kv_pages=160)
    prompts = [unrelated(i, 49) for i in range(12)]
    for prompt in prompts:
        engine.generate(prompt, max_tokens=1)
    evict_all(engine)
    flush(engine)
    may_read = held_reads(monkeypatch)
    waits = [engine.submit(prompt, max_tokens=1)[0] for prompt in prompts]
    engine.step()
    (other,) = engine.submit(unrelated(50), max_tokens=1)
    slots = {engine.core._queue.find(i).slot for i in waits if not engine.answers[i].admitted}
    assert len(slots) > 8
    assert [a.sequence for a in engine.step().admitted if a.sequence not in waits] == [other]
    assert len(engine.core._queue.view.held & slots) > 4
    (gone,) = [i for i in waits if not engine.answers[i].admitted][-1:]
    engine.core.abort([gone])
    may_read.set()
    answers = engine.run()
    assert all(answers[i].admitted.cached_tokens == 48 for i in waits if i != gone)
    assert not engine.core._queue.view.held
