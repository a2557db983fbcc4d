"""Preemption by page shortage: same answers, little recomputation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.runner.cpu import Runner
from gatewayd_hooks.preemption import PreemptionMode, Victim
from gatewayd_hooks.scheduling import QueueView

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
NUM, NEW = 24, 100
PROMPTS = [[2 + i, *range(10, 18 + i % 5)] for i in range(NUM)]
LEAST = sum(len(p) + NEW - 1 for p in PROMPTS)


def storm_in(engine: Any) -> tuple[list[list[int]], int]:
    """A storm, and how often the unluckiest sequence was preempted."""
    worst = 0
    ids = [engine.submit(p, max_tokens=NEW, ignore_eos=True)[0] for p in PROMPTS]
    while engine.core.has_work:
        engine.step()
        engine.core.check()
        worst = max([worst, *(sequence.preemptions for sequence in engine.core._queue)])
    return [engine.answers[i].tokens for i in ids], worst


@pytest.fixture
def calm(make_engine: Make, folder: Path) -> list[list[int]]:
    """Answers without a preemption."""
    engine = make_engine(folder, kv_pages=400, max_running=NUM, prefix_cache=None)
    answers, worst = storm_in(engine)
    assert worst == 0
    assert engine.core.stats.computed_tokens == LEAST
    return answers


@pytest.mark.parametrize(
    ("cache", "overlaps"),
    [(None, False), (StrategyChoice("hash"), False), (StrategyChoice("hash"), True)],
)
def test_a_storm_of_preemptions_calms_down(
    make_engine: Make,
    folder: Path,
    calm: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    cache: StrategyChoice | None,
    overlaps: bool,
) -> None:
    monkeypatch.setattr(Runner, "overlaps", overlaps)
    # Rows for all at once, and pages for three whole answers.
    engine = make_engine(folder, kv_pages=22, max_running=NUM, prefix_cache=cache)
    answers, worst = storm_in(engine)
    assert answers == calm
    assert 0 < worst <= 3
    # If every row were filled at once, it were half as much again and more.
    assert engine.core.stats.computed_tokens < 1.35 * LEAST


def test_a_sequence_preempted_often_is_spared_while_there_are_others(
    make_engine: Make, folder: Path, calm: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def first(self: Any, view: QueueView, candidates: NDArray[np.int32]) -> Victim:
        return Victim(int(candidates.min()), PreemptionMode.RECOMPUTE)

    monkeypatch.setattr("gatewayd_preempt_recompute.strategy.Recompute.victim", first)
    engine = make_engine(folder, page_size=1, kv_pages=352, max_running=NUM, prefix_cache=None)
    answers, worst = storm_in(engine)
    assert answers == calm
    assert engine.core.stats.faults == 0
    # Thrice for others; then only by those who were spared as often.
    assert worst <= 5


@pytest.mark.usefixtures("depth")
def test_pages_kept_for_waiting_forks_go_before_a_running_sequence_does(
    make_engine: Make, folder: Path
) -> None:
    prompt = list(range(2, 66))
    # The two choices that wait for a row keep the prompt's four pages when the first is gone.
    engine = make_engine(folder, kv_pages=8, max_running=1, prefix_cache=None)
    ids = engine.submit(prompt, n=3, max_tokens=60, ignore_eos=True)
    engine.step()
    engine.core.abort(ids[:1])
    other = engine.submit(prompt[::-1], max_tokens=60, ignore_eos=True)
    answers = engine.run()
    assert [len(answers[i].tokens) for i in (*ids[1:], *other)] == [60, 60, 60]
    assert engine.core.stats.preemptions == 0
