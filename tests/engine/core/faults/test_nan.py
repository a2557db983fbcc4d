"""NaN logits: the request fails alone; its pages and copies affect no other request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.model.fused.data import StepOutputs
from gatewayd_engine.state.step_batch import StepBatch
from tests.engine.core.prompts import PROMPTS, answers, runner_of
from tests.engine.core.small_model import NUM_LAYERS
from tests.engine.core.spoilt_outputs import spoil

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]


@pytest.mark.usefixtures("depth")
def test_nan_logits_fail_the_request_that_has_them(
    make_engine: Make, undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    runner = runner_of(engine)
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in PROMPTS]
    for _ in range(4):
        engine.step()

    def poison(_: StepBatch, out: StepOutputs) -> None:
        out.logits[2] = out.best[2] = torch.nan

    with monkeypatch.context() as patch:
        spoil(patch, runner, poison)
        engine.step()
    done = engine.run()
    (failed,) = [i for i in ids if done[i].finished.error]
    assert done[failed].finished.error[0] == "numerical_error"
    for i, tokens in zip(ids, undisturbed, strict=True):
        if i != failed:
            assert done[i].tokens == tokens


@pytest.mark.usefixtures("depth")
def test_pages_that_saw_a_nan_do_not_poison_fused_steps(
    make_engine: Make, undisturbed: list[list[int]]
) -> None:
    engine = make_engine(kv_pages=64, prefix_cache=None)
    (i,) = engine.submit(PROMPTS[0], max_tokens=30, ignore_eos=True)
    for _ in range(3):
        engine.step()
    page = engine.core._queue.find(i).pages[0]
    runner_of(engine)._pool.data[page] = torch.nan
    engine.run()
    assert engine.answers[i].finished.error[0] == "numerical_error"
    assert answers(engine) == undisturbed


@pytest.mark.usefixtures("depth")
def test_pages_that_saw_a_nan_do_not_poison_their_next_owner(
    make_engine: Make, undisturbed: list[list[int]]
) -> None:
    engine = make_engine(kv_pages=64, prefix_cache=None, cpu_kernels="torch")
    pool = runner_of(engine)._attention._by_token
    (i,) = engine.submit(PROMPTS[0], max_tokens=30, ignore_eos=True)
    for _ in range(3):
        engine.step()
    page = engine.core._queue.find(i).pages[0]
    layers = NUM_LAYERS
    pool.view(-1, layers * 2 * 16, pool.shape[1])[page] = torch.nan
    contexts = runner_of(engine)._attention._planner._contexts
    contexts._drop(i)  # so that the page is read again
    contexts._owners = contexts._ends = np.zeros(0, np.int64)
    engine.run()
    assert engine.answers[i].finished.error[0] == "numerical_error"
    assert answers(engine) == undisturbed


@pytest.mark.usefixtures("depth")
def test_a_nan_in_a_long_prompt_is_not_shared(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(max_batch_tokens=32)
    prompt = list(range(20, 120))
    healthy = make_engine().generate(prompt, max_tokens=5)
    runner = runner_of(engine)

    def poison(_: StepBatch, out: StepOutputs) -> None:
        for each in (out.hidden, out.logits, out.best):
            each.fill_(torch.nan)

    (bad,) = engine.submit(prompt, max_tokens=5)
    with monkeypatch.context() as patch:
        spoil(patch, runner, poison)
        engine.step()
    engine.run()
    assert engine.answers[bad].finished.error[0] == "numerical_error"
    assert engine.generate(prompt, max_tokens=5) == healthy
    assert engine.answers[bad + 1].admitted.cached_tokens == 0


@pytest.mark.usefixtures("depth")
def test_a_nan_in_a_dense_copy_stays_with_its_sequence(make_engine: Make) -> None:
    engine = make_engine(prefix_cache=None, cpu_kernels="torch")
    long, short, other = list(range(20, 100)), list(range(30, 90)), list(range(40, 130))
    wanted = [make_engine().generate(p, max_tokens=20, ignore_eos=True) for p in (short, other)]
    ids = [engine.submit(p, max_tokens=20, ignore_eos=True)[0] for p in (long, short, other)]
    for _ in range(4):
        engine.step()
    contexts = runner_of(engine)._attention._planner._contexts
    ((_, buffer),) = contexts._buffers.in_use()
    line = buffer.owners.index(ids[0])
    now = int(contexts._ends[contexts._owners.tolist().index(ids[0])]) - 1
    with torch.inference_mode():
        buffer.kv[:, :, line, :, now] = torch.nan
    done = engine.run()
    assert done[ids[0]].finished.error[0] == "numerical_error"
    assert [done[i].tokens for i in ids[1:]] == wanted


class Poisoned:
    """The engine's attention, to which some sequences bring keys that are no numbers.

    Attributes:
        sequences: who brings them.
        raises: whether a batch with one of them and others raises after its first layer.
    """

    def __init__(self, engine: Any, *, raises: bool) -> None:
        self._attention = runner_of(engine)._attention
        self.sequences: set[int] = set()
        self.raises = raises

    def plan(self, batch: StepBatch) -> None:
        self._batch = batch
        self._attention.plan(batch)

    def discard_copies(self) -> None:
        self._attention.discard_copies()

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        bad = np.flatnonzero(np.isin(self._batch.sequences, list(self.sequences)))
        key_value = key_value.clone()
        key_value[torch.from_numpy(self._batch.last[bad])] = torch.nan
        out: torch.Tensor = self._attention(layer, query, key_value)
        if self.raises and len(bad) and len(self._batch) > 1:
            raise RuntimeError("it does not work together")
        return out


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("num_bad", [1, 3])
def test_who_comes_after_nans_in_dense_copies_is_well(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch, depth: bool, num_bad: int, raises: bool
) -> None:
    engine = make_engine(prefix_cache=None, cpu_kernels="torch")
    long, short = [list(range(20 + k, 110 + k)) for k in range(4)], [[7, 8], [9, 10], [11], [12]]
    wanted = [make_engine().generate(p, max_tokens=20, ignore_eos=True) for p in [long[3], *short]]
    ids = [engine.submit(p, max_tokens=20, ignore_eos=True)[0] for p in long]
    for _ in range(4):
        engine.step()
    poisoned = Poisoned(engine, raises=raises)
    poisoned.sequences = set(ids[:num_bad])
    monkeypatch.setattr(runner_of(engine), "_attention", poisoned)
    output = engine.step()
    if depth:
        output = engine.step()
    assert {f.sequence for f in output.finished if f.error} == poisoned.sequences
    after = [engine.submit(p, max_tokens=20, ignore_eos=True)[0] for p in short]
    done = engine.run()
    assert [done[i].tokens for i in [ids[3], *after]] == wanted
