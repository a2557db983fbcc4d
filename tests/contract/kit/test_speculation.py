"""Speculation conformance: rejects invalid drafters and controllers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch

from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.speculation import DraftBatch, Drafts, Features
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.simulation.drafting import check_drafts
from gatewayd_hooks.testing.speculation import (
    DrafterConformance,
    SpecControllerConformance,
)
from tests.contract.kit.conftest import fails

Verdict = Callable[..., list[str]]
Catches = Callable[..., bool]


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
def test_a_broken_drafter_fails(catches: Catches, broken: Callable[[Any], None]) -> None:
    assert catches(DrafterConformance, Kind.DRAFTER, "ngram", broken)


class Observing:
    """Says again the token whose hidden state it saw last in a row."""

    def open(self, resources: EngineResources) -> None:
        self._last = np.full(resources.max_running, -1)

    def close(self) -> None:
        pass

    def admit(self, row: int) -> None:
        self._last[row] = -1

    def observe(self, features: Features) -> None:
        self._last[features.rows] = features.hidden[:, 0].numpy()

    def propose(self, batch: DraftBatch) -> Drafts:
        said = self._last[batch.rows]
        return Drafts(np.maximum(said, 0)[:, None].astype(np.int32), (said >= 0).astype(np.int32))


class Unforgetting(Observing):
    def admit(self, row: int) -> None:
        pass


class Scribbling(Observing):
    def observe(self, features: Features) -> None:
        super().observe(features)
        features.hidden.zero_()


class FromTheFirst(Observing):
    """Believes that every sequence is computed from its first token."""

    def open(self, resources: EngineResources) -> None:
        super().open(resources)
        self._next = np.zeros(resources.max_running, np.int64)

    def admit(self, row: int) -> None:
        super().admit(row)
        self._next[row] = 0

    def observe(self, features: Features) -> None:
        super().observe(features)
        for row, position in zip(features.rows, features.positions, strict=True):
            if self._next[row] != position:
                raise IndexError("a token is missing")
            self._next[row] += 1


class Borrowing(Observing):
    """Keeps hidden states where they are, in memory that is not its own."""

    def open(self, resources: EngineResources) -> None:
        super().open(resources)
        self._seen: list[Features] = []

    def observe(self, features: Features) -> None:
        self._seen.append(features)

    def propose(self, batch: DraftBatch) -> Drafts:
        for features in self._seen:
            super().observe(features)
        return super().propose(batch)


class Target:
    """Hidden states that say which token they are of."""

    hidden_size = 4
    dtype = torch.float32

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return ids[:, None].repeat(1, 4).float()


def failures(drafter: type[Observing]) -> list[str]:
    def resources(self: Any) -> EngineResources:
        return engine_resources(
            max_running=4, max_model_len=96, vocab_size=16, target=cast(Any, Target())
        )

    members = {"make": lambda self: drafter(), "resources": resources}
    case = type("Case", (DrafterConformance,), members)()
    tests = [test for test in vars(DrafterConformance) if test.startswith("test_")]
    return [test for test in tests if fails(case, test)]


def test_a_sound_drafter_that_observes_passes() -> None:
    assert failures(Observing) == []


@pytest.mark.parametrize("drafter", [Unforgetting, Scribbling, FromTheFirst, Borrowing])
def test_a_broken_drafter_that_observes_fails(drafter: type[Observing]) -> None:
    assert failures(drafter)


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
def test_a_broken_controller_fails(catches: Catches, broken: Callable[[Any], None]) -> None:
    assert catches(SpecControllerConformance, Kind.SPEC_CONTROLLER, "fixed", broken)
