"""Operator actions: held and released sequences answer as if undisturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.model import embedded
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import Amount, TenantQuota
from gatewayd_engine.process.time_causes import Cause
from tests.engine.core.conftest import Harness, MakeEngine
from tests.engine.core.fake_guide import LISTS, Listed, choice_of, text_of, with_guide
from tests.engine.core.scheduling.test_time_attribution import Watcher
from tests.engine.core.tiered_engines import disk, evict_all, flush, held_reads

pytestmark = pytest.mark.usefixtures("small_model")

PROMPT = [300 + i * 7 % 3001 for i in range(40)]
OTHER = [500 + i * 11 % 3001 for i in range(30)]
SMALL: dict[str, Any] = {
    "scheduler": StrategyChoice("fcfs", {"max_prefill_chunk": 16}),
    "page_size": 4,
    "kv_pages": 128,
}
GREEDY: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}
SEEDED: dict[str, Any] = {**GREEDY, "temperature": 0.9, "seed": 3}
JSON = ("json_object", "")


def idle(engine: Harness, steps: int = 4) -> None:
    """Let some steps go by, as the engine's process does: none without work."""
    for _ in range(steps):
        if engine.core.has_work:
            engine.step()
        engine.core.check()


def told(engine: Harness, ids: list[int]) -> list[list[int]]:
    return [list(engine.answers[i].tokens) for i in ids]


def held_at(engine: Harness, step: int, **fields: Any) -> list[list[int]]:
    """Answers to one request that is held after so many steps, and released later."""
    ids = engine.submit(PROMPT, **fields)
    for _ in range(step):
        if engine.core.has_work:
            engine.step()
    engine.core.operator.pause_sequences(ids)
    idle(engine)
    before = told(engine, ids)
    (neighbour,) = engine.submit(OTHER, max_tokens=3, ignore_eos=True)
    idle(engine, 8)
    assert told(engine, ids) == before, "it made progress"
    assert len(engine.answers[neighbour].tokens) == 3, "others go on"
    left = [i for i in ids if engine.answers[i].finished is None]
    if left:
        assert engine.core.stats.num_held > 0
        assert engine.core.stats.held_pages == 0, "its pages are free"
        assert engine.core.stats.num_running == 0, "its row is free"
        assert not engine.core.has_work, "the engine may sleep"
    engine.core.resume(ids)
    engine.run()
    assert engine.core.stats.faults == 0
    return told(engine, ids)


@pytest.mark.usefixtures("depth")
@pytest.mark.parametrize(
    "fields", [GREEDY, SEEDED, {**SEEDED, "n": 2}], ids=["greedy", "seeded", "n"]
)
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_held_in_any_phase_it_answers_the_same(
    make_engine: MakeEngine, fields: dict[str, Any], preemption: str
) -> None:
    calm = make_engine(**SMALL)
    ids = calm.submit(PROMPT, **fields)
    calm.run()
    expected = told(calm, ids)
    for step in (0, 2, 3, 5, 12):
        engine = make_engine(**SMALL, preemption=StrategyChoice(preemption))
        assert held_at(engine, step, **fields) == expected, f"held after step {step}"
        assert engine.core.stats.preemptions == 0, "nobody gave way for want of pages"


def test_held_with_a_grammar_and_with_drafts_it_answers_the_same(make_engine: MakeEngine) -> None:
    drafting = {
        "drafter": StrategyChoice("draft_model", {"model": str(embedded.folder("nano-draft"))}),
        "spec_controller": StrategyChoice("fixed"),
        "guide": StrategyChoice("llguidance"),
    }
    guided = {"max_tokens": 24, "guide": JSON}
    calm = make_engine(**SMALL, guide=drafting["guide"])
    expected = {
        name: [calm.generate(PROMPT, **fields)]
        for name, fields in (("guided", guided), ("free", GREEDY))
    }
    for step in (1, 3, 5):
        for name, fields in (("guided", guided), ("free", GREEDY)):
            engine = make_engine(**SMALL, **drafting)
            assert held_at(engine, step, **fields) == expected[name], f"{name}, after step {step}"
    assert calm.core.stats.num_drafts == 0 < engine.core.stats.num_drafts


def test_held_while_its_grammar_is_compiled_it_is_looked_at_again(make_engine: MakeEngine) -> None:
    guide = Listed()
    engine = with_guide(make_engine(**SMALL), guide)
    guide.gate.clear()
    good = engine.submit(PROMPT, max_tokens=20, guide=choice_of(*LISTS[0]))[0]
    bad = engine.submit(PROMPT, max_tokens=20, guide=choice_of())[0]
    idle(engine)
    engine.core.operator.pause_sequences([good, bad])
    idle(engine)
    assert not engine.core.has_work
    guide.gate.set()
    engine.core.resume([good, bad])
    answers = engine.run()
    assert text_of(answers[good].tokens) in LISTS[0]
    assert answers[bad].finished.error[0] == "invalid_grammar"


def test_held_while_its_tenant_is_at_its_ceiling(make_engine: MakeEngine) -> None:
    engine = make_engine(**SMALL)
    engine.bound(TenantQuota("a", None, Amount(16)))
    (first,) = engine.submit(PROMPT, max_tokens=20, ignore_eos=True, tenant="a")
    (second,) = engine.submit(OTHER, max_tokens=20, ignore_eos=True, tenant="a")
    idle(engine)
    assert engine.core._queue.view.held, "it waits for the first"
    engine.core.operator.pause_sequences([second])
    idle(engine)
    assert engine.answers[first].finished is None
    assert not engine.core._queue.view.held
    assert not engine.core._placement.deferral.by_cause
    engine.core.resume([second])
    engine.run()
    assert [len(tokens) for tokens in told(engine, [first, second])] == [20, 20]


def test_held_while_a_tier_brings_its_pages(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(kv_pages=64, kv_tiers=[disk(tmp_path)])
    prompt = [300 + i * 7 % 3001 for i in range(161)]
    expected = engine.generate(prompt, **GREEDY)
    evict_all(engine)
    flush(engine)
    may_read = held_reads(monkeypatch)
    (one,) = engine.submit(prompt, **GREEDY)
    engine.step()
    assert engine.core._queue.view.held, "it waits for the disk"
    engine.core.operator.pause_sequences([one])
    may_read.set()
    idle(engine)
    assert not engine.core._queue.view.held
    assert not engine.core.has_work
    engine.core.resume([one])
    assert engine.run()[one].tokens == expected


@pytest.mark.parametrize(
    "fields",
    [{"logprobs": 2, "prompt_logprobs": 2, **GREEDY}, {"pooling": "mean", "max_tokens": 1}],
)
def test_what_is_told_of_its_prompt_is_told_once(
    make_engine: MakeEngine, fields: dict[str, Any]
) -> None:
    def reported(engine: Harness, sequence: int) -> list[Any]:
        found = engine.answers[sequence]
        sums = [np.frombuffer(one.vector, np.float32) for one in found.pooled]
        told = [
            (one.token, round(one.logprob, 4)) for one in found.prompt_logprobs + found.logprobs
        ]
        return [
            told,
            sum(one.count for one in found.pooled),
            np.sum(sums, axis=0).round(2).tolist(),
        ]

    calm = make_engine(**SMALL)
    (one,) = calm.submit(PROMPT, **fields)
    calm.run()
    expected = reported(calm, one)
    for step in (1, 2, 5):
        engine = make_engine(**SMALL)
        held_at(engine, step, **fields)
        got = reported(engine, 0)
        assert got[:2] == expected[:2]
        assert np.allclose(got[2], expected[2], atol=0.05)


def test_what_comes_held_computes_nothing_until_it_is_released(make_engine: MakeEngine) -> None:
    engine = make_engine(**SMALL)
    expected = engine.generate(PROMPT, **GREEDY)
    engine.answers.clear()
    other = make_engine(**SMALL)
    ids = other.submit(PROMPT, n=2, is_held=True, **GREEDY)
    idle(other)
    assert told(other, ids) == [[], []]
    assert other.core.stats.computed_tokens == 0
    assert other.core.stats.num_waiting == 2
    other.core.resume(ids)
    other.run()
    assert told(other, ids) == [expected, expected]


def test_its_time_is_told_as_held_and_then_as_computed_again(make_engine: MakeEngine) -> None:
    watcher = Watcher(make_engine(**SMALL, prefix_cache=None))
    engine = watcher.harness
    (one,) = engine.submit(PROMPT, **GREEDY)
    while len(engine.answers[one].tokens) < 3:
        watcher.step()
    engine.core.operator.pause_sequences([one])
    watcher.step()
    assert not engine.core.has_work
    engine.core.resume([one])
    watcher.run()
    assert watcher.order(one) == [
        Cause.PREFILL,
        Cause.DECODE,
        Cause.HELD,
        Cause.RECOMPUTE,
        Cause.DECODE,
    ]


def test_nobody_waits_for_one_that_is_held(make_engine: MakeEngine) -> None:
    """It computed the beginning that they share."""
    engine = make_engine(**SMALL)
    (leader,) = engine.submit([*PROMPT, 7], **GREEDY)
    engine.step()
    followers = [engine.submit([*PROMPT, i], **GREEDY)[0] for i in (8, 9)]
    engine.step()
    engine.core.operator.pause_sequences([leader])
    for _ in range(40):
        if engine.core.has_work:
            engine.step()
    assert all(engine.answers[i].finished for i in followers)
    assert not engine.answers[leader].finished
    engine.core.resume([leader])
    engine.run()


@pytest.mark.parametrize("step", [0, 1, 2, 3, 6])
def test_cancelled_while_it_is_held_it_leaves_nothing(make_engine: MakeEngine, step: int) -> None:
    engine = make_engine(**SMALL)
    ids = engine.submit(PROMPT, n=2, **SEEDED)
    for _ in range(step):
        engine.step()
    engine.core.operator.pause_sequences(ids)
    idle(engine)
    engine.core.abort(ids[:1])
    idle(engine)
    engine.core.resume(ids[:1])  # it is no more
    idle(engine)
    assert not engine.core.has_work
    engine.core.abort(ids)
    idle(engine)
    assert engine.core.stats.num_waiting == engine.core.stats.held_pages == 0
    assert len(engine.generate(OTHER, **GREEDY)) == 12


def test_a_sibling_whose_parent_is_cancelled_stays_held(make_engine: MakeEngine) -> None:
    engine = make_engine(**SMALL)
    ids = engine.submit(PROMPT, n=2, **SEEDED)
    engine.step()  # the second waits for the prompt that the first one computes
    engine.core.operator.pause_sequences(ids)
    engine.core.abort(ids[:1])
    idle(engine)
    assert told(engine, ids) == [[], []]
    assert engine.core.stats.num_held == 1
    engine.core.resume(ids)
    engine.run()
    assert len(engine.answers[ids[1]].tokens) == 12


def test_a_scheduler_that_fails_meanwhile_does_not_learn_of_the_held(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(**SMALL | {"scheduler": StrategyChoice("priority")})
    expected = engine.generate(PROMPT, **GREEDY)
    (one,) = engine.submit(PROMPT, **GREEDY)
    engine.step()
    engine.core.operator.pause_sequences([one])
    idle(engine)

    def broken(*args: object) -> None:
        raise ZeroDivisionError

    (other,) = engine.submit(OTHER, **GREEDY)
    monkeypatch.setattr("gatewayd_sched_priority.strategy.WeightedClasses._budgets", broken)
    for _ in range(30):
        if engine.core.has_work:
            engine.step()
    assert engine.core.stats.faults > 0
    assert engine.answers[other].finished
    assert not engine.answers[one].finished
    engine.core.resume([one])
    engine.run()
    assert engine.answers[one].tokens == expected


def test_unknown_ones_are_ignored(make_engine: MakeEngine) -> None:
    engine = make_engine(**SMALL)
    engine.core.operator.pause_sequences([99])
    (one,) = engine.submit(PROMPT, **GREEDY)
    engine.core.resume([99, one])
    assert len(engine.run()[one].tokens) == 12
    engine.core.operator.pause_sequences([one])
    assert not engine.core.has_work
