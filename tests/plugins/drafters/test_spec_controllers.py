"""Speculation controllers: the kit, and each one's rule."""

from __future__ import annotations

import numpy as np
import pytest

from gatewayd_hooks.speculation import SpecReport, SpecView
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.speculation import SpecControllerConformance
from gatewayd_spec_adaptive.config import AdaptiveConfig
from gatewayd_spec_adaptive.cost import StepCost
from gatewayd_spec_adaptive.strategy import Adaptive
from gatewayd_spec_fixed.config import FixedConfig
from gatewayd_spec_fixed.strategy import Fixed


class TestAdaptive(SpecControllerConformance):
    def make(self) -> Adaptive:
        return Adaptive(AdaptiveConfig())


class TestFixed(SpecControllerConformance):
    def make(self) -> Fixed:
        return Fixed(FixedConfig())


def played(
    alpha: float, per_token: float, rows: int, steps: int, draft_seconds: float = 0.0
) -> tuple[float, float]:
    """Tokens per second with the controller and without, on a machine of known cost.

    Args:
        alpha: probability that a draft is kept.
        per_token: seconds of a token beside the 1 ms of every step.
        rows: sequences.
        steps: how long.
        draft_seconds: of guessing.
    """
    controller = Adaptive(AdaptiveConfig())
    controller.open(engine_resources(max_running=rows))
    rng = np.random.default_rng(1)
    tokens = seconds = 0.0
    for _ in range(steps):
        view = SpecView(np.arange(rows), np.full(rows, 20), 512, rows)
        asked = controller.decide(view)
        kept = np.array(
            [int((np.cumprod(rng.random(count) < alpha)).sum()) for count in asked.tolist()]
        )
        num_tokens = rows + int(asked.sum())
        took = (1e-3 + per_token * num_tokens) * rng.uniform(0.95, 1.05)
        drafting = draft_seconds if asked.any() else 0.0
        controller.report(
            SpecReport(np.arange(rows), asked, asked, kept, num_tokens, drafting, took)
        )
        tokens += rows + float(kept.sum())
        seconds += took + drafting
    return tokens / seconds, rows / (1e-3 + per_token * rows)


@pytest.mark.parametrize(
    ("alpha", "per_token", "rows", "least"),
    [
        (0.9, 2e-5, 1, 3.0),  # a token more costs little: deep
        (0.6, 2e-5, 1, 1.7),
        (0.9, 2e-5, 16, 1.9),
        (0.05, 2e-5, 1, 0.97),  # nothing is kept
        (0.0, 2e-4, 16, 0.97),
        (0.6, 1e-3, 32, 0.97),  # every token costs as much as a step
        (0.95, 1e-3, 32, 0.97),
    ],
)
def test_the_controller_gains_where_it_can_and_loses_nowhere(
    alpha: float, per_token: float, rows: int, least: float
) -> None:
    with_drafts, without = played(alpha, per_token, rows, steps=1_500)
    assert with_drafts >= least * without


@pytest.mark.parametrize("most", [20, 1])
def test_drafts_that_promise_more_than_they_keep_lose_next_to_nothing(most: int) -> None:
    """By turns all drafts are kept for a while and none: each decision comes too late.

    Of those that are asked for, ``most`` come.
    """
    controller = Adaptive(AdaptiveConfig())
    controller.open(engine_resources(max_running=4))
    rows = np.arange(4)
    tokens = seconds = 0.0
    for step in range(4_000):
        asked = controller.decide(SpecView(rows, np.full(4, 20), 512, 4))
        drafted = np.minimum(asked, most)
        kept = drafted * (step % 40 < 12)
        num_tokens = 4 + int(drafted.sum())
        took, drafting = 1e-3 + 3e-4 * num_tokens, 5e-4 * bool(asked.any())
        controller.report(SpecReport(rows, asked, drafted, kept, num_tokens, drafting, took))
        tokens += 4 + float(kept.sum())
        seconds += took + drafting
    assert tokens / seconds >= 0.985 * 4 / (1e-3 + 3e-4 * 4)


def test_a_machine_that_was_slow_for_a_while_is_given_another_chance() -> None:
    """While drafts were tried for the first time, everything took five times as long."""
    controller = Adaptive(AdaptiveConfig())
    controller.open(engine_resources(max_running=1))
    row, drafts = np.array([0]), []
    for step in range(600):
        asked = controller.decide(SpecView(row, np.array([20]), 512, 1))
        slow = 5.0 if step < 3 or 10 < step < 14 else 1.0
        took = slow * (1e-3 + 5e-5 * (1 + int(asked[0])))
        kept = asked - (asked > 3)  # nearly all
        controller.report(SpecReport(row, asked, asked, kept, 1 + int(asked[0]), 1e-5, took))
        drafts.append(int(asked[0]))
    assert np.mean(drafts[-200:]) > 4


def steps_of(
    controller: Adaptive, rows: int, count: int, *, right: bool, comes: int = 20
) -> list[list[int]]:
    """What it asks for in so many steps, in which all drafts are kept or none."""
    asked = []
    view = SpecView(np.arange(rows), np.full(rows, 20), 512, rows)
    for _ in range(count):
        drafts = controller.decide(view)
        drafted = np.minimum(drafts, comes)
        num_tokens = rows + int(drafted.sum())
        took, drafting = 1e-3 + 2e-4 * num_tokens, 1e-5 * bool(drafts.any())
        controller.report(
            SpecReport(view.rows, drafts, drafted, drafted * right, num_tokens, drafting, took)
        )
        asked.append(drafts.tolist())
    return asked


def opened(rows: int, **settings: int) -> Adaptive:
    controller = Adaptive(AdaptiveConfig(**settings))
    controller.open(engine_resources(max_running=rows))
    return controller


def test_tries_are_made_with_a_few_sequences_by_turns() -> None:
    asked = np.array(steps_of(opened(24), 24, 3_000, right=False))[1_000:]
    tries = asked[asked.any(1)]
    assert len(tries) > 3
    assert (np.count_nonzero(tries, axis=1) <= 8).all()
    assert (np.count_nonzero(tries, axis=0) > 0).all(), "each has its turn"


def test_now_and_then_a_step_goes_without_drafts_to_see_what_it_takes() -> None:
    asked = np.array(steps_of(opened(1), 1, 400, right=True))[100:, 0]
    assert 3 <= np.count_nonzero(asked == 0) <= 12


def test_drafts_that_never_come_are_not_counted_on() -> None:
    controller = opened(1)
    steps_of(controller, 1, 200, right=True, comes=1)
    assert controller._came[0] > 0.9
    assert controller._came[1] < 0.1


@pytest.mark.parametrize(("before", "after"), [(20, 3), (3, 20)])
def test_what_is_known_is_handed_over_whatever_the_most_drafts(before: int, after: int) -> None:
    old, new = opened(2, max_drafts=before), opened(2, max_drafts=after)
    steps_of(old, 2, 50, right=True)
    assert new.import_state(old.export_state())
    assert max(map(max, steps_of(new, 2, 50, right=True))) == after


def test_a_decision_against_drafts_is_not_that_of_the_next_sequence() -> None:
    controller = Adaptive(AdaptiveConfig())
    controller.open(engine_resources(max_running=2))

    def step(row: int, *, right: bool) -> int:
        rows = np.array([row])
        asked = controller.decide(SpecView(rows, np.array([20]), 512, 1))
        count = int(asked[0])
        took = 1e-3 + 2e-4 * (1 + count)
        controller.report(SpecReport(rows, asked, asked, asked * right, 1 + count, 1e-5, took))
        return count

    for row in (0, 1):
        controller.admit(row)
    for _ in range(200):
        step(1, right=True)
    refused = next(i for i in range(50) if step(0, right=False) == 0)
    assert refused > 0
    assert step(0, right=False) == 0
    controller.admit(0)
    assert step(0, right=True) > 0


def test_guessing_that_takes_longer_than_it_saves_ends() -> None:
    with_drafts, without = played(0.7, 2e-5, 1, steps=1_500, draft_seconds=4e-3)
    assert with_drafts >= 0.95 * without


def test_the_cost_of_a_step_is_between_those_of_its_neighbours() -> None:
    cost = StepCost()
    assert cost.seconds(np.array([3.0])).tolist() == [0.0]
    cost.record(1, 0.1)
    cost.record(5, 0.3)
    cost.record(1000, 9.0)
    assert cost.seconds(np.array([1.0, 3.0, 5.0])).tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert 0.3 < cost.seconds(np.array([400.0]))[0] < 9.0
    for _ in range(100):
        cost.record(1, 0.2)
    cost.record(1, 50.0)  # a hiccup
    assert cost.seconds(np.array([1.0]))[0] == pytest.approx(0.2, rel=0.25)


def test_a_hiccup_at_a_size_that_is_never_seen_again_says_nothing_of_larger_ones() -> None:
    cost = StepCost()
    cost.record(3, 5.0)
    for _ in range(5):
        cost.record(8, 0.1)
    assert cost.seconds(np.array([3.0, 8.0])).tolist() == pytest.approx([0.1, 0.1], rel=0.01)
