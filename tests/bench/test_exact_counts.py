"""Benchmarks: exact counts that no machine's speed changes."""

from __future__ import annotations

from functools import partial

import pytest

from gatewayd_engine.process.config import EngineConfig
from tests.bench.batching import run as run_batching
from tests.bench.batching import trace
from tests.bench.plugin_cost import STEPS, calls_in_steps, counter_works
from tests.bench.prefix_sharing import OWN, SHARED, jobs_of
from tests.bench.prefix_sharing import run as run_sharing
from tests.engine.core.small_model import small


@pytest.fixture(autouse=True)
def _in_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted is the same of a small model, in one thread."""
    monkeypatch.setattr("tests.bench.in_process_engine.folder", small)
    monkeypatch.setattr(
        "tests.bench.in_process_engine.EngineConfig", partial(EngineConfig, threads=1)
    )


def test_a_thousand_engine_steps_call_no_hook() -> None:
    assert counter_works()
    assert calls_in_steps(STEPS, batch=2) == 0


def test_a_shared_prefix_is_computed_once_and_changes_no_token() -> None:
    jobs = jobs_of(5, 2, seed=1)
    alone = SHARED + OWN
    usual = run_sharing(jobs, 16, "hash")
    radix, without = run_sharing(jobs, 16, "radix"), run_sharing(jobs, 16, None)
    assert usual.computed == alone + 4 * OWN
    assert without.computed == 5 * alone
    assert radix.computed == alone + 4 * OWN
    assert (usual.hits, radix.hits, without.hits) == (4 * SHARED, 4 * SHARED, 0)
    assert usual.tokens == radix.tokens == without.tokens


def test_static_batching_gives_the_same_tokens_in_more_steps() -> None:
    jobs = trace(16, seed=1)
    static, continuous = run_batching("static", jobs, 4), run_batching("fcfs", jobs, 4)
    assert static.tokens == continuous.tokens
    assert [len(tokens) for tokens in static.tokens] == [job.output_tokens for job in jobs]
    assert static.stats.step > 1.2 * continuous.stats.step
