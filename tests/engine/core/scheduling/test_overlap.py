"""Overlapped steps: planned before the previous step has completed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.model.fused.data import StepOutputs
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import LENGTH, STOP, SwapStrategy
from gatewayd_engine.runner.cpu import Runner
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_evict_lfu.strategy import Lfu
from gatewayd_hooks.scheduling import Plan, QueueView
from tests.engine.core.golden import golden_model
from tests.engine.core.models.test_tokens import compare
from tests.engine.core.prompts import PROMPTS, answers, runner_of
from tests.engine.core.spoilt_outputs import spoil
from tests.engine.core.tiered_engines import disk, first_step

Make = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("small_model", "overlapping")


def test_tokens_equal_transformers_with_too_few_pages(
    checkpoint: Callable[[str], Path],
    make_engine: Make,
    prompts: Callable[..., list[list[int]]],
) -> None:
    folder = checkpoint("llama")
    engine = make_engine(folder, page_size=2, kv_pages=180, max_batch_tokens=64, max_running=16)
    compare(engine, golden_model(folder), prompts(50, 320, 160), 24, must_preempt=True)


def test_a_step_is_launched_before_the_last_one_has_landed(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    engine.submit(PROMPTS[0], max_tokens=5, ignore_eos=True)
    batches: list[Any] = []
    runner = runner_of(engine)
    launch = runner.launch

    def noted(batch: Any) -> Any:
        batches.append(batch)
        return launch(batch)

    monkeypatch.setattr(runner, "launch", noted)
    outputs = [engine.step() for _ in range(3)]
    assert [len(output.tokens) // 4 for output in outputs] == [0, 1, 1]
    assert [batch.unknown.tolist() if batch.unknown is not None else None for batch in batches] == [
        None,
        [0],
        [0],
    ]
    engine.run()
    # Five tokens take five steps: nothing is computed of an answer that is as long as it may be.
    assert [len(batch.ids) for batch in batches] == [len(PROMPTS[0]), 1, 1, 1, 1]


def test_answers_are_the_same_with_everything_on(
    make_engine: Make, undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "seed": 3, "logprobs": 3}
    asked |= {"frequency_penalty": 0.6, "repetition_penalty": 1.2, "min_tokens": 4}
    engine = make_engine()
    assert answers(engine) == undisturbed
    ids = [engine.submit(p, max_tokens=12, **asked)[0] for p in PROMPTS]
    done = engine.run()
    monkeypatch.setattr(Runner, "overlaps", False)
    other = make_engine()
    same = [other.submit(p, max_tokens=12, **asked)[0] for p in PROMPTS]
    wanted = other.run()
    for i, j in zip(ids, same, strict=True):
        assert done[i].tokens == wanted[j].tokens
        assert [r.logprob for r in done[i].logprobs] == pytest.approx(
            [r.logprob for r in wanted[j].logprobs], abs=1e-4
        )


def test_a_token_behind_the_end_is_dropped(make_engine: Make, undisturbed: list[list[int]]) -> None:
    engine = make_engine()
    stop = undisturbed[2][5]
    first = undisturbed[2].index(stop)
    ids = [
        engine.submit(p, max_tokens=12, ignore_eos=True, stop_token_ids=[stop] if i == 2 else [])[0]
        for i, p in enumerate(PROMPTS)
    ]
    done = engine.run()
    assert done[ids[2]].finished.reason == STOP
    assert done[ids[2]].tokens == undisturbed[2][:first]
    for i in {*range(8)} - {2}:
        assert done[ids[i]].finished.reason == LENGTH
        assert done[ids[i]].tokens == undisturbed[i]


def test_pages_are_not_given_to_others_before_the_step_that_may_write_to_them_has_landed(
    make_engine: Make,
) -> None:
    engine = make_engine(prefix_cache=None)
    (gone,) = engine.submit(PROMPTS[0], max_tokens=50, ignore_eos=True)
    engine.submit(PROMPTS[1], max_tokens=50, ignore_eos=True)
    engine.step()
    engine.step()
    free = engine.core.stats.free_pages
    engine.core.abort([gone])
    assert engine.core.stats.free_pages == free
    engine.core.check()
    engine.step()
    assert engine.core.stats.free_pages > free
    engine.core.check()


def test_the_last_one_that_is_aborted_lands_too(make_engine: Make) -> None:
    engine = make_engine(prefix_cache=None)
    ids = engine.submit(PROMPTS[0], n=3, max_tokens=50, ignore_eos=True)
    for _ in range(4):
        engine.step()
    engine.core.abort(ids)
    assert engine.core.has_work
    engine.step()
    assert not engine.core.has_work
    assert engine.core.stats.free_pages == engine.info.num_pages


def test_a_row_that_is_taken_again_at_once_is_not_mistaken(
    make_engine: Make, undisturbed: list[list[int]]
) -> None:
    engine = make_engine(max_running=1)
    (gone,) = engine.submit(PROMPTS[0], max_tokens=50, ignore_eos=True)
    for _ in range(3):
        engine.step()
    engine.core.abort([gone])
    assert answers(engine) == undisturbed


def test_numbers_that_go_wrong_end_their_request_alone(
    make_engine: Make, undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    runner = runner_of(engine)
    calls = 0

    def poison(_: StepBatch, outputs: StepOutputs) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            outputs.logits[3] = outputs.best[3] = torch.nan

    spoil(monkeypatch, runner, poison)
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in PROMPTS]
    done = engine.run()
    failed = [k for k, i in enumerate(ids) if done[i].finished.error]
    assert len(failed) == 1
    for k in {*range(8)} - {*failed}:
        assert done[ids[k]].tokens == undisturbed[k]


def test_with_drafts_each_step_lands_before_the_next(
    make_engine: Make, undisturbed: list[list[int]]
) -> None:
    engine = make_engine(drafter=StrategyChoice("ngram"))
    engine.submit(PROMPTS[0], max_tokens=5, ignore_eos=True)
    assert len(np.frombuffer(engine.step().tokens, np.int32)) == 1
    engine.run()
    assert answers(engine) == undisturbed


def test_a_drafter_comes_and_goes_between_two_steps(
    make_engine: Make, undisturbed: list[list[int]]
) -> None:
    engine = make_engine()
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in PROMPTS]
    for number in range(1, 7):
        engine.step()
        choices = [StrategyChoice("ngram")] if number % 2 else []
        engine.core.swaps.start(SwapStrategy(number, "drafter", choices))
        while not (swapped := engine.core.swaps.complete_ready()):
            pass
        assert not swapped[0].error
        engine.step()
    done = engine.run()
    assert [done[i].tokens for i in ids] == undisturbed


def test_what_a_step_before_computes_is_waited_for(make_engine: Make) -> None:
    engine = make_engine(max_batch_tokens=64)
    prompt = list(range(20, 270))
    ids = [engine.submit([*prompt, 300 + i], max_tokens=4, ignore_eos=True)[0] for i in range(4)]
    done = engine.run()
    cached = [done[i].admitted.cached_tokens for i in ids]
    assert cached == [0, 240, 240, 240]


def test_a_processor_is_asked_no_more_about_a_request_that_it_has_failed(
    make_engine: Make, undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    bias = engine.core.strategies.processors._processors[1]
    calls: list[str] = []

    def raises(name: str) -> Any:
        def called(*args: Any) -> None:
            calls.append(name)
            raise ValueError("not to my taste")

        return called

    (asking,) = engine.submit(PROMPTS[0], max_tokens=12, logit_bias=[(9, 0.0)])
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in PROMPTS[1:]]
    for _ in range(4):
        engine.step()
    with monkeypatch.context() as broken:
        for name in ("apply", "append"):
            broken.setattr(bias, name, raises(name))
        done = engine.run()
    assert done[asking].finished.error[0] == "strategy_error"
    # For all, and then for each of those who ask, of whom there is one.
    assert calls == ["apply", "apply"]
    assert engine.core.stats.faults == 1
    assert [done[i].tokens for i in ids] == undisturbed[1:]
    # Who has its row next is asked about.
    assert answers(engine, logit_bias=[(9, 0.0)]) == undisturbed


def test_an_eviction_that_says_it_has_more_pages_costs_nothing(
    make_engine: Make, undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lfu, "__len__", lambda self: 1000)
    few = {"page_size": 4, "kv_pages": 104, "max_batch_tokens": 96, "fault_limit": 1}
    engine = make_engine(**few, eviction=StrategyChoice("lfu"))
    assert answers(engine) == undisturbed
    assert engine.core.stats.faults == 1
    assert engine.core.stats.preemptions > 0


def test_one_whose_last_token_is_on_its_way_may_be_granted_in_vain(
    make_engine: Make, undisturbed: list[list[int]]
) -> None:
    """By a scheduler that remembers who runs instead of looking."""
    engine = make_engine(max_model_len=len(PROMPTS[0]) + 12)
    strategies, queue = engine.core.strategies, engine.core._queue
    plan = strategies.plan.schedule
    granted = []

    def stubborn(view: QueueView) -> Plan:
        over = [slot for slot in queue.running if slot not in view.running]
        granted.extend(over)
        return Plan(np.array(over, np.int32), np.ones(len(over), np.int32)) if over else plan(view)

    strategies.plan = replace(strategies.plan, schedule=stubborn)
    assert engine.generate(PROMPTS[0], max_tokens=12, ignore_eos=True) == undisturbed[0]
    assert len(granted) == 1
    assert engine.core.stats.faults == 0
    assert engine.core.stats.held_pages == 0


def test_what_runs_at_the_end_is_kept_for_a_later_engine(
    make_engine: Make, folder: Path, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"kv_pages": 40, "page_size": 8, "max_batch_tokens": 64}
    engine = make_engine(folder, **fields, kv_tiers=[disk(tmp_path)])
    ids = [engine.submit([*range(k, k + 60)], max_tokens=50)[0] for k in (100, 200)]
    for _ in range(2):
        engine.step()
    # What is left of the second's prompt is on its way.
    assert [len(engine.answers[i].tokens) for i in ids] == [1, 0]
    engine.core.save(20)
    engine.core.check()
    assert not engine.core.has_work
    assert engine.core.stats.held_pages == 0
    engine.core.strategies.close()
    other = make_engine(folder, **fields, kv_tiers=[disk(tmp_path)])
    for k in (100, 200):
        first_step(other, [*range(k, k + 60)])
    assert other.core.stats.tier_hits == {"disk": 56 + 56}


def test_a_last_step_that_fails_costs_nothing_of_what_was_cached(
    make_engine: Make,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fields: dict[str, Any] = {"kv_pages": 40, "page_size": 8, "max_batch_tokens": 64}
    engine = make_engine(folder, **fields, kv_tiers=[disk(tmp_path)])
    for k in (100, 200):
        engine.submit([*range(k, k + 60)], max_tokens=50)
    for _ in range(2):
        engine.step()
    assert engine.core.is_computing

    def broken(*args: object) -> None:
        raise RuntimeError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(type(engine.core._flight.launched), "result", broken)
        engine.core.save(20)
    assert "last step lost: RuntimeError('no more')" in caplog.text
    engine.core.check()
    assert not engine.core.has_work
    assert engine.core.stats.held_pages == 0
    engine.core.strategies.close()
    other = make_engine(folder, **fields, kv_tiers=[disk(tmp_path)])
    for k in (100, 200):
        first_step(other, [*range(k, k + 60)])
    # The first prompt, which was computed before, and nothing of the second.
    assert other.core.stats.tier_hits == {"disk": 56}
