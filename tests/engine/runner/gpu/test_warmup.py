"""Warmup: leaves nothing behind, for any engine sizes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.attention import draft_slots
from gatewayd_engine.kernels.attention.splits import num_splits
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.runner import backend
from gatewayd_engine.runner.gpu import warmup
from gatewayd_engine.runner.gpu.cuda_graphs import LaunchEach, sizes
from gatewayd_engine.runner.gpu.piecewise_graphs import token_counts
from gatewayd_engine.runner.gpu.warmup import _drafted_batches, _first_batches, _lines_of_parts
from gatewayd_engine.sampling.guides import processors
from gatewayd_hooks.speculation import DraftBatch, Drafts
from tests.engine.core.fake_drafters import Guess, guess_with
from tests.engine.core.fake_guide import LISTS, choice_of, with_guide
from tests.engine.core.prompts import PROMPTS
from tests.engine.runner.gpu import conftest
from tests.engine.runner.gpu.triton_specializations import CompiledKind, Noted
from tests.random_cases import few_of

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]


def test_an_engine_is_as_new(make_device_engine: Make, device_runner: Callable[[Any], Any]) -> None:
    engine = make_device_engine()
    stats = engine.core.stats
    for nothing in (
        stats.step,
        stats.num_running,
        stats.num_waiting,
        stats.cached_pages,
        stats.held_pages,
        stats.prefix_queries,
        stats.computed_tokens,
    ):
        assert nothing == 0
    assert stats.free_pages == engine.info.num_pages
    assert not engine.core.has_work
    runner = device_runner(engine)
    pool = runner._drafted._slots.pool
    assert not pool.data[:-1].any()
    # It has computed: what it wrote is where padding writes.
    assert pool.data[-1].any()
    state = runner._state
    assert (state.block_table == pool.num_pages).all()
    assert not state.sampling.temperature.any()
    assert state.last_tokens[state.padding] < engine.info.vocab_size


@pytest.mark.parametrize(("running", "budget"), [(1, 1), (1, 2), (3, 1), (3, 3), (3, 8)])
def test_small_engines_are_warmed_too(
    make_device_engine: Make, make_engine: Make, running: int, budget: int
) -> None:
    found = []
    for make in (make_engine, make_device_engine):
        engine = make(max_running=running, max_batch_tokens=budget)
        ids = [engine.submit(p[:7], max_tokens=4, ignore_eos=True)[0] for p in PROMPTS[:3]]
        done = engine.run()
        found.append([done[i].tokens for i in ids])
    assert found[0] == found[1]


@pytest.mark.parametrize("fields", [{"kv_pages": 1, "page_size": 4}, {"max_model_len": 5}])
def test_contexts_shorter_than_what_is_warmed_with(
    make_device_engine: Make, make_engine: Make, fields: dict[str, int]
) -> None:
    engine = make_device_engine(**fields)
    asked: dict[str, Any] = {"max_tokens": 2, "ignore_eos": True}
    assert engine.generate([5, 6], **asked) == make_engine(**fields).generate([5, 6], **asked)


def test_each_kind_of_step_is_made_once() -> None:
    def kinds(*sizes: int) -> list[list[int]]:
        return [batch.counts.tolist() for batch in _first_batches(*sizes)]

    assert kinds(8, 512, 2048) == [[32], [1, 32], [1]]
    assert kinds(8, 512, 5) == [[5], [1, 5], [1]]
    assert kinds(1, 512, 2048) == [[32], [1]]
    assert kinds(1, 1, 2048) == [[1]]
    for lines in (1, 2, 9):
        for tokens in range(lines, 40):
            made = kinds(lines, tokens, 30)
            assert all(len(counts) <= lines and sum(counts) <= tokens for counts in made)


def test_each_width_that_fits_a_step_is_launched() -> None:
    def widths(lines: int, tokens: int, max_len: int) -> list[int]:
        batches = _drafted_batches(lines, tokens, max_len, 1)
        return [max(batch.counts[: batch.num_decode]) for batch in batches]

    # The first has a prompt beside it; the others the fewest slots that each width takes.
    assert widths(8, 512, 2048) == [3, 2, 3, 4, 6, 10, 18, 34]
    assert widths(8, 512, 10) == [3, 2, 3, 4, 6, 10]
    assert widths(8, 5, 2048) == [3, 2, 3, 4]
    assert widths(1, 512, 3) == [2, 3]
    assert widths(1, 1, 2048) == []
    for lines in (1, 2, 9, 70):
        for tokens in (1, 2, 3, 4, 9, 40, 512):
            for max_len in (1, 2, 9, 64):
                for batch in _drafted_batches(lines, tokens, max_len, 132):
                    assert len(batch) <= lines
                    assert len(batch.ids) <= tokens
                    assert batch.counts.max() <= max_len


@pytest.mark.parametrize("multiprocessors", [1, 6, 58, 132, 148])
@pytest.mark.parametrize("each", [1, 3, 8, 32])
def test_contexts_are_split_in_all_ways(multiprocessors: int, each: int) -> None:
    """Of steps whose lines have so many programs each."""

    def parts(lines: int) -> int:
        most = num_splits(lines * each, 1 << 17, multiprocessors)
        return max(parts for parts in draft_slots._SPLITS if parts <= most)

    for most in (*range(1, 70), 256, 512):
        assert {parts(n) for n in _lines_of_parts(most, multiprocessors)} == {
            parts(n) for n in range(1, most + 1)
        }


@pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)
def test_progress_names_each_stage_and_ends_with_one(
    make_device_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, float]] = []
    real = warmup.warm

    def noted(
        runner: Any, kernels: Any, capture: Any, progress: Any, *rest: Any, **fields: Any
    ) -> None:
        real(
            runner,
            kernels,
            capture,
            lambda stage, part: said.append((stage, part)),
            *rest,
            **fields,
        )

    monkeypatch.setattr(backend, "warm", noted)
    make_device_engine(max_running=8, drafter=StrategyChoice("ngram"))
    stages = [
        "compiling kernels",
        "capturing mixed steps",
        "capturing steps with drafts",
        "capturing decode steps",
    ]
    assert list(dict(said)) == stages
    for stage in stages:
        parts = [part for name, part in said if name == stage]
        assert parts == sorted(parts)
        assert parts[-1] == 1.0
    assert len([1 for name, _ in said if name == stages[1]]) == len(token_counts(512))
    # Eight lines of each width: four sizes.
    assert len([1 for name, _ in said if name == stages[2]]) == 4 * 6
    assert len([1 for name, _ in said if name == stages[3]]) == len(sizes(8))


@pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)
@pytest.mark.parametrize("drafter", [None, StrategyChoice("ngram")])
def test_launches_are_chosen_for_what_is_captured(
    make_device_engine: Make, monkeypatch: pytest.MonkeyPatch, drafter: StrategyChoice | None
) -> None:
    chosen: list[list[int]] = []
    monkeypatch.setattr(
        backend.DeviceBackend, "_choose", lambda self, runner, sizes: chosen.append(sizes)
    )
    make_device_engine(max_running=2, drafter=drafter)
    without = {*sizes(2), *token_counts(512)}
    # One line and two, with 1, 2, 4, 8, 16 and 32 drafts each.
    slots = {2, 3, 5, 9, 17, 33} | {4, 6, 10, 18, 34, 66}
    assert chosen == [sorted(without if drafter is None else without | slots)]


@pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_is_compiled_for_the_first_who_asks_for_it(
    make_device_engine: Make, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    kernels = Noted()
    monkeypatch.setattr(conftest, "TorchKernels", lambda: kernels)
    monkeypatch.setattr(processors, "_kernels", lambda device: kernels)
    # As on a GPU, where a step is launched before it is captured.
    monkeypatch.setattr(LaunchEach, "whole", lambda self, launches: launches() or launches)
    engine = with_guide(make_device_engine(dtype=dtype, max_running=8))
    warmed = set(kernels.kinds)
    kernels.kinds.clear()
    asked: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "top_k": 20, "seed": 3},
        {"logprobs": 2},
        {"prompt_logprobs": 1},
        {"frequency_penalty": 0.5, "repetition_penalty": 1.2},
        {"logit_bias": [(9, 2.0)]},
        {"guide": choice_of(*LISTS[0])},
    ]
    for num in (1, 2, 3, 4):
        for first in range(len(asked)):
            for i, prompt in enumerate(PROMPTS[:num]):
                engine.submit(prompt[: 9 + i], max_tokens=3, **asked[(first + i) % len(asked)])
            engine.run()
    names = {kind.kernel for kind in kernels.kinds}
    assert names > {"_choose", "_reduce", "_penalise", "_mask"}
    assert kernels.kinds <= warmed


class Widths(Guess):
    """Guesses nothing right, as many tokens as each width takes, in turn."""

    def __init__(self, shape: str) -> None:
        super().__init__([], 0.0, shape)
        self._most = cycle((1, 2, 4, 8, 16, 32, 63))

    def propose(self, batch: DraftBatch) -> Drafts:
        limits = np.minimum(batch.limits, next(self._most))
        drafts = super().propose(batch._replace(limits=limits))
        # Others have what chance gives them.
        drafts.counts[0] = limits[0]
        return drafts


def verified(
    make: Make, monkeypatch: pytest.MonkeyPatch, shape: str, **fields: Any
) -> tuple[Noted, set[CompiledKind]]:
    """Verify drafts of each width, alone and beside prompts, of few lines and of many.

    Contexts of few lines are split.

    Args:
        make: makes an engine.
        monkeypatch: for what it is made of.
        shape: of drafts.
        fields: of its configuration.

    Returns:
        What was noted of the steps, and the kinds before there were any.
    """
    kernels = Noted()
    monkeypatch.setattr(conftest, "TorchKernels", lambda: kernels)
    for module in (draft_slots, warmup):
        monkeypatch.setattr(module, "num_multiprocessors", lambda device: 32)
    engine = make(
        max_running=12,
        max_model_len=2048,
        max_batch_tokens=256,
        drafter=StrategyChoice("ngram"),
        spec_controller=StrategyChoice("fixed", {"drafts": 63}),
        **fields,
    )
    guess_with(engine, Widths(shape))
    warmed = set(kernels.kinds)
    kernels.kinds.clear()
    for num in (1, 3, 12):
        for i in range(num):
            engine.submit(PROMPTS[i % 8] + [i], max_tokens=90, ignore_eos=True)
        for _ in range(15):
            engine.step()
        engine.core.abort(list(engine.answers))
        engine.run()
    return kernels, warmed


@pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)
@pytest.mark.parametrize(
    ("shape", "capture_is"),
    few_of([("chain", "auto"), ("tree", "off"), ("chain", "off"), ("tree", "auto")], 2),
)
def test_verification_of_each_width_is_compiled_before_it_is_needed(
    make_device_engine: Make, monkeypatch: pytest.MonkeyPatch, shape: str, capture_is: str
) -> None:
    kernels, warmed = verified(make_device_engine, monkeypatch, shape, capture=capture_is)
    assert {width for width, _ in kernels.attended()} == {2, 3, 5, 9, 17, 33, 64}
    assert {parts for _, parts in kernels.attended()} == {1, 4, 16}
    assert kernels.kinds <= warmed
