"""Warming leaves nothing behind, whatever the sizes of the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch

from gatewayd_engine import backend
from gatewayd_engine.config import StrategyChoice
from gatewayd_engine.device import warming
from gatewayd_engine.device.graphs import LaunchEach, sizes
from gatewayd_engine.device.pieces import token_counts
from gatewayd_engine.device.warming import _first_batches
from gatewayd_engine.guides import processors
from gatewayd_engine.kernels.twins import TorchKernels
from tests.engine.core.guiding import LISTS, choice_of, with_guide
from tests.engine.core.prompts import PROMPTS
from tests.engine.device import conftest

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


@pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)
def test_progress_names_each_stage_and_ends_with_one(
    make_device_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, float]] = []
    real = warming.warm

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


class Noted:
    """Torch's kernels; notes for what Triton would compile one of its own.

    Attributes:
        kinds: which kernels ran, over what kinds of tensors.
    """

    def __init__(self) -> None:
        self._kernels: Any = TorchKernels()
        self.kinds: set[tuple[object, ...]] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kernel = getattr(self._kernels, name)

        def noted(*args: Any, **named: Any) -> Any:
            given = (*args, *named.values())
            self.kinds.add((name, *(kind for arg in given for kind in _kinds(arg))))
            return kernel(*args, **named)

        return noted


def _kinds(argument: Any) -> list[object]:
    """Types, alignment, and which strides are one or multiples of 16."""
    if is_dataclass(argument):
        return [kind for f in fields(argument) for kind in _kinds(getattr(argument, f.name))]
    if isinstance(argument, torch.Tensor):
        strides = [1 if stride == 1 else stride % 16 == 0 for stride in argument.stride()]
        return [(argument.dtype, argument.data_ptr() % 16 == 0, *strides)]
    return [argument is None]


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
    names = {str(name) for name, *_ in kernels.kinds}
    assert names > {"sample", "logprobs", "penalise", "mask"}
    assert kernels.kinds <= warmed
