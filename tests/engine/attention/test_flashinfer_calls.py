"""FlashInfer calls after a plan's first: skip validation, never computation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gatewayd_engine.attention.flashinfer.calls import LayerRun, PlannedCalls
from gatewayd_engine.model.attention_shape import AttentionShape
from tests.engine.attention.steps import Sequences

SHAPE = AttentionShape(5, 6, 2, 8, 0.3, None, (0, 0, 0, 0, 0))

Launch = Callable[..., None]


def as_usual(launch: Launch, plan: float, q: Any, k: Any, v: Any, out: Any) -> None:
    launch("workspace", plan, q, k, v, "indptr", out, None)


class Wrapper:
    """Answers ``plan * q + 2 * k - v``; how it launches that is a test's to say."""

    def __init__(self, run: Callable[..., None] = as_usual) -> None:
        self.plan = 1.0
        self.runs = 0
        self.launched: list[tuple[Any, ...]] = []
        self.module = SimpleNamespace(paged_run=self.paged_run)
        self._cached_module: Any = self.module
        self._run = run

    def run(self, q: Any, paged_kv_cache: Any, *, out: Any) -> object:
        self.runs += 1
        self._run(self._cached_module.paged_run, self.plan, q, *paged_kv_cache, out)
        return out

    def paged_run(self, *args: Any, factor: int = 2) -> None:
        self.launched.append(args)
        plan, q, k, v, out, *_ = [arg for arg in args if not isinstance(arg, str | None)]
        out.copy_(plan * q + factor * k - v)


def check(run: LayerRun, plan: float) -> None:
    """Attend some layers, each over tensors of its own."""
    for _ in range(4):
        q, k, v, out = torch.randn(4, 6).unbind()
        run.run(q, (k, v), out=out)
        assert out.equal(plan * q + 2 * k - v)


def test_only_the_first_layer_of_a_plan_is_run(caplog: pytest.LogCaptureFixture) -> None:
    wrapper = Wrapper()
    calls = PlannedCalls(wrapper)
    for step in range(1, 4):
        wrapper.plan = float(step)
        check(calls.planned(), wrapper.plan)
        assert wrapper.runs == step
        assert len(wrapper.launched) == 4 * step
    assert wrapper._cached_module is wrapper.module
    assert not caplog.records


def twice(*args: Any) -> None:
    as_usual(*args)
    as_usual(*args)


def back(launch: Launch, plan: float, q: Any, k: Any, v: Any, out: Any) -> None:
    made = out.clone()
    launch(plan, q, k, v, made)
    out.copy_(made)


ODD: dict[str, Callable[..., None]] = {
    "queries are others": lambda run, plan, q, k, v, out: run(plan, q.clone(), k, v, out),
    "keys are others": lambda run, plan, q, k, v, out: run(plan, q, k.clone(), v, out),
    "values are others": lambda run, plan, q, k, v, out: run(plan, q, k, v.clone(), out),
    "answers are others": back,
    "launched twice": twice,
    "launched by name": lambda run, plan, q, k, v, out: run(plan, q, k, v, out, factor=2),
    "queries twice": lambda run, plan, q, k, v, out: run(plan, q, k, v, out, q),
    "answers twice": lambda run, plan, q, k, v, out: run(plan, q, k, v, out, out),
    "apart": lambda run, plan, q, k, v, out: run(plan, q, None, k, v, out),
    "further apart": lambda run, plan, q, k, v, out: run(plan, q, k, None, v, out),
    "not launched": lambda run, plan, q, k, v, out: out.copy_(plan * q + 2 * k - v),
}


@pytest.mark.parametrize("how", ODD)
def test_who_launches_in_another_way_is_run_for_each_layer(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrapper = Wrapper(ODD[how])
    calls = PlannedCalls(wrapper)
    for step in range(1, 4):
        wrapper.plan = float(step)
        check(calls.planned(), wrapper.plan)
        assert wrapper.runs == 4 * step
    assert wrapper._cached_module is wrapper.module
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "Wrapper launched unexpected kernels; steps with prefill are slower"
    )


def test_who_has_no_module_is_run_for_each_layer(caplog: pytest.LogCaptureFixture) -> None:
    wrapper = Wrapper()
    wrapper._cached_module = None
    wrapper.run = lambda q, kv, out: as_usual(wrapper.paged_run, 1.0, q, *kv, out)  # type: ignore
    check(PlannedCalls(wrapper).planned(), 1.0)
    assert len(wrapper.launched) == 4
    assert len(caplog.records) == 1


def test_a_first_layer_that_raises_leaves_no_trace() -> None:
    def failing(*args: Any) -> None:
        if len(wrapper.launched) == 0:
            wrapper.launched.append(())
            raise MemoryError("no room")
        as_usual(*args)

    wrapper = Wrapper(failing)
    calls = PlannedCalls(wrapper)
    run = calls.planned()
    with pytest.raises(MemoryError):
        check(run, 1.0)
    assert wrapper._cached_module is wrapper.module
    check(run, 1.0)
    check(calls.planned(), 1.0)
    assert wrapper.runs == 3


def test_what_else_a_wrapper_wants_of_its_module_is_there() -> None:
    wrapper = Wrapper(lambda run, *args: wrapper._cached_module.other(*args))
    wrapper.module.other = lambda *args: as_usual(wrapper._cached_module.paged_run, *args)
    check(PlannedCalls(wrapper).planned(), 1.0)
    assert wrapper.runs == 1


@pytest.mark.parametrize("windows", [(0, 0, 0, 0, 0), (9, 0, 9, 0, 0)])
def test_a_step_runs_each_wrapper_once(
    flashinfer: SimpleNamespace, windows: tuple[int, ...]
) -> None:
    sequences = Sequences(replace(SHAPE, windows=windows), seed=2)
    attention = flashinfer.FlashAttention(sequences.shape, sequences.pool, sequences.append)
    kinds = len(set(windows))
    for counts, parts in (({0: 1, 1: 1}, 1), ({2: 7}, 1), ({0: 1, 3: 5, 4: 2}, 2)):
        flashinfer.runs.clear()
        sequences.check(attention, counts)
        assert len(flashinfer.runs) == len(set(map(id, flashinfer.runs))) == parts * kinds
