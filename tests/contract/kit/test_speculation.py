"""The kit catches drafters and controllers that break a rule of speculation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_hooks.speculation import DraftBatch, Drafts
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.speculation import (
    DrafterConformance,
    SpecControllerConformance,
    check_drafts,
)

Verdict = Callable[..., list[str]]


@pytest.mark.parametrize("name", ["fixed", "adaptive"])
def test_a_sound_controller_passes(verdict: Verdict, name: str) -> None:
    assert verdict(SpecControllerConformance, Kind.SPEC_CONTROLLER, name) == []


def test_a_sound_drafter_passes(verdict: Verdict) -> None:
    assert verdict(DrafterConformance, Kind.DRAFTER, "ngram") == []


# Each of these breaks one rule of a sound strategy, which is changed in place.


def changed(drafter: Any, change: Callable[[DraftBatch, Drafts], Drafts]) -> None:
    propose = drafter.propose
    drafter.propose = lambda batch: change(batch, propose(batch))


def guesses_one_too_many(drafter: Any) -> None:
    changed(
        drafter,
        lambda batch, drafts: Drafts(
            np.zeros((len(batch.rows), 9), np.int32), batch.limits.astype(np.int32) + 1
        ),
    )


def guesses_what_is_no_token(drafter: Any) -> None:
    changed(drafter, lambda batch, drafts: drafts._replace(tokens=drafts.tokens - 1))


def remembers_the_sequence_before(drafter: Any) -> None:
    seen = []

    def change(batch: DraftBatch, drafts: Drafts) -> Drafts:
        seen.append(batch)
        return drafts._replace(counts=np.minimum(drafts.counts, len(seen) % 5).astype(np.int32))

    changed(drafter, change)


def writes_to_the_tokens(drafter: Any) -> None:
    def change(batch: DraftBatch, drafts: Drafts) -> Drafts:
        batch.tokens[0, 0] = 1
        return drafts

    changed(drafter, change)


def answers_for_one_row_only(drafter: Any) -> None:
    changed(drafter, lambda batch, drafts: Drafts(drafts.tokens[:1], drafts.counts[:1]))


@pytest.mark.parametrize(
    "broken",
    [
        guesses_one_too_many,
        guesses_what_is_no_token,
        remembers_the_sequence_before,
        writes_to_the_tokens,
        answers_for_one_row_only,
    ],
)
def test_a_broken_drafter_fails(verdict: Verdict, broken: Callable[[Any], None]) -> None:
    assert verdict(DrafterConformance, Kind.DRAFTER, "ngram", broken)


def batch() -> DraftBatch:
    return DraftBatch(
        rows=np.arange(1),
        lengths=np.array([3]),
        limits=np.array([3]),
        tokens=np.ones((1, 8), np.int32),
        temperature=np.ones(1, np.float32),
        uniform=np.zeros((1, 3)),
    )


def tree(parents: list[int], tokens: list[int]) -> Drafts:
    line = np.array([tokens], np.int32)
    return Drafts(line, np.array([3], np.int32), np.array([parents], np.int32))


def drawn(*lines: list[float]) -> Drafts:
    probs = torch.tensor([lines], dtype=torch.float32)
    return Drafts(np.array([[0, 0, 0]], np.int32), np.array([3], np.int32), None, probs)


def test_trees_and_drawn_chains_may_be_right() -> None:
    check_drafts(batch(), tree([-1, -1, 0], [1, 0, 0]), 2)
    check_drafts(batch(), drawn([0.5, 0.5], [1.0, 0.0], [0.1, 0.9]), 2)


@pytest.mark.parametrize(
    "drafts",
    [
        tree([-1, 2, 0], [1, 0, 0]),
        tree([-1, -1, 0], [1, 1, 0]),
        drawn([0.5, 0.5], [0.0, 1.0], [0.1, 0.9]),
        drawn([0.5, 0.6], [1.0, 0.0], [0.1, 0.9]),
        drawn([0.5, 0.5], [2.0, -1.0], [0.1, 0.9]),
        drawn([0.5, 0.5], [1.0, 0.0], [0.1, 0.9])._replace(parents=np.array([[-1, 0, 1]])),
    ],
)
def test_trees_and_drawn_chains_may_be_wrong(drafts: Drafts) -> None:
    with pytest.raises(AssertionError):
        check_drafts(batch(), drafts, 2)


def decides(controller: Any, change: Callable[..., Any]) -> None:
    decide = controller.decide
    controller.decide = lambda view: change(view, decide(view))


def goes_beyond_the_limits(controller: Any) -> None:
    decides(controller, lambda view, drafts: drafts + (view.budget > 30))


def goes_beyond_the_budget(controller: Any) -> None:
    decides(controller, lambda view, drafts: np.minimum(view.limits, 4))


def answers_with_fractions(controller: Any) -> None:
    decides(controller, lambda view, drafts: drafts / 2)


def forgets_a_row(controller: Any) -> None:
    decides(controller, lambda view, drafts: drafts[:-1])


@pytest.mark.parametrize(
    "broken",
    [goes_beyond_the_limits, goes_beyond_the_budget, answers_with_fractions, forgets_a_row],
)
def test_a_broken_controller_fails(verdict: Verdict, broken: Callable[[Any], None]) -> None:
    assert verdict(SpecControllerConformance, Kind.SPEC_CONTROLLER, "fixed", broken)
