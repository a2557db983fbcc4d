"""Warming leaves nothing behind, whatever the sizes of the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_engine import backend
from gatewayd_engine.device import warming
from gatewayd_engine.device.graphs import sizes
from gatewayd_engine.device.warming import _first_batches
from tests.engine.core.prompts import PROMPTS

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
    pool = runner._drafted._pool
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

    def noted(runner: Any, kernels: Any, capture: Any, progress: Any) -> None:
        real(runner, kernels, capture, lambda stage, part: said.append((stage, part)))

    monkeypatch.setattr(backend, "warm", noted)
    make_device_engine(max_running=8)
    stages = ["compiling kernels", "capturing decode steps"]
    assert list(dict(said)) == stages
    for stage in stages:
        parts = [part for name, part in said if name == stage]
        assert parts == sorted(parts)
        assert parts[-1] == 1.0
    assert len([1 for name, _ in said if name == stages[1]]) == len(sizes(8))
