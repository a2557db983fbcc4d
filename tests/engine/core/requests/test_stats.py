"""Engine statistics: reported after each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_engine.process.engine_stats import STEP_SIZES

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]


def test_steps_are_counted_by_the_tokens_they_computed(make_engine: Make) -> None:
    engine = make_engine(max_batch_tokens=64)
    prompts = [[7 + k] * length for k, length in enumerate((1, 8, 9, 150))]
    for prompt in prompts:
        engine.submit(prompt, max_tokens=6)
    sizes = []
    while engine.core.has_work:
        sizes.append(engine.step().stats.step_tokens)
    engine.core.step()  # computes nothing and is none of them
    stats = engine.core.stats
    expected = Counter(sum(size > bound for bound in STEP_SIZES) for size in sizes)
    assert max(sizes) == 64
    assert dict(enumerate(stats.step_sizes)) == {
        at: expected[at] for at in range(len(STEP_SIZES) + 1)
    }
    assert stats.computed_tokens == sum(sizes)


def test_every_preemption_is_told_with_the_step_that_made_it(make_engine: Make) -> None:
    engine = make_engine(kv_pages=12, max_running=8)
    for k in range(6):
        engine.submit([7 + k] * 20, max_tokens=100, ignore_eos=True)
    told: Counter[int] = Counter()
    while engine.core.has_work:
        before = engine.core.stats.preemptions
        output = engine.step()
        assert output.stats.preemptions - before == len(output.preempted)
        told.update(output.preempted)
    assert 0 < told.total() == engine.core.stats.preemptions
    assert set(told) <= set(engine.answers)


def test_those_that_wait_for_a_siblings_prompt_are_told_apart(make_engine: Make) -> None:
    engine = make_engine(max_running=1)
    engine.submit([7] * 20, n=4, max_tokens=30)
    engine.submit([8] * 20, max_tokens=3)
    before = engine.core.stats
    assert (before.num_waiting, before.num_deferred) == (5, 3)
    stats = engine.step().stats
    assert (stats.num_running, stats.num_waiting, stats.num_deferred) == (1, 4, 0)
