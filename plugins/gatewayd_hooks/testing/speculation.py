"""What every drafter and every controller of speculation must do, however well it guesses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_hooks.handover import hand_over
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.speculation import (
    DraftBatch,
    DrafterStrategy,
    Drafts,
    FeatureDrafter,
    Features,
    SpecControllerStrategy,
    SpecReport,
    SpecView,
)
from gatewayd_hooks.testing.campaign import campaign
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.states import refuses_strange_states

_ROWS = 4  # few, so that they change hands
_CONTEXT = 96
_EVENTS = st.lists(
    st.tuples(st.sampled_from(["step", "step", "step", "end"]), st.integers(0, 2**20)),
    min_size=1,
    max_size=12,
)
_STEPS = st.lists(
    st.tuples(st.lists(st.integers(1, 12), max_size=_ROWS), st.integers(0, 40), st.integers(0, 99)),
    min_size=1,
    max_size=20,
)


class _Rows:
    """Sequences that grow in the rows of a batch, as an engine verifies drafts."""

    def __init__(self, drafter: DrafterStrategy, resources: EngineResources, seed: int) -> None:
        self._drafter = drafter
        self._resources = resources
        self._random = np.random.default_rng(seed)
        self.tokens = np.zeros((_ROWS, resources.max_model_len), np.int32)
        self.lengths = np.zeros(_ROWS, np.int64)
        self._seen = np.zeros(_ROWS, np.int64)
        self.answers: list[Drafts] = []
        for row in range(_ROWS):
            self.begin(row)

    def begin(self, row: int) -> None:
        """Another sequence takes a row; what the one before left behind it stays there."""
        length = int(self._random.integers(1, 24))
        # Few different tokens: sequences repeat themselves.
        self.tokens[row, :length] = self._random.integers(0, 3, length)
        self.lengths[row] = length
        # What is found in a cache is never computed here.
        self._seen[row] = self._random.choice([0, 0, length // 2, length - 1])
        self._drafter.admit(row)

    def step(self) -> None:
        """Some rows ask for drafts, keep some of them, and all get a token."""
        asking = np.flatnonzero(self._random.random(_ROWS) < 0.8)
        room = self._resources.max_model_len - self.lengths
        asking = asking[room[asking] > 1]
        if not len(asking):
            return
        limits = np.minimum(self._random.integers(1, 7, len(asking)), room[asking] - 1)
        temperature = self._random.choice(np.array([0.0, 0.7], np.float32), len(asking))
        uniform = self._random.random((len(asking), int(limits.max())))
        lengths = self.lengths[asking]
        batch = DraftBatch(asking, lengths, limits, self.tokens, temperature, uniform)
        if isinstance(self._drafter, FeatureDrafter):
            self._observe(self._drafter)
        drafts = self._propose(batch)
        self.answers.append(drafts)
        check_drafts(batch, drafts, self._resources.vocab_size)
        for i, row in enumerate(asking.tolist()):
            kept = 0 if drafts.parents is not None else int(drafts.counts[i])
            kept = int(self._random.integers(0, kept + 1))
            end = int(self.lengths[row]) + kept
            self.tokens[row, end - kept : end] = drafts.tokens[i, :kept]
            self.tokens[row, end] = self._random.integers(0, 3)
            self.lengths[row] = end + 1

    def _observe(self, drafter: FeatureDrafter) -> None:
        """Show the hidden states of all that was computed since; the last tokens are not yet."""
        import torch

        target = self._resources.target
        assert target is not None, "a drafter that observes needs resources with a target"
        counts = np.maximum(self.lengths - 1 - self._seen, 0)
        rows = np.repeat(np.arange(_ROWS), counts)
        if not len(rows):
            return
        positions = np.concatenate(
            [np.arange(seen, seen + n) for seen, n in zip(self._seen, counts, strict=True)]
        )
        ids = self.tokens[rows, positions].astype(np.int64)
        # Any will do, if the same token has the same: these are of the right size and type.
        hidden = target.embed(torch.from_numpy(ids))
        before = hidden.clone()
        drafter.observe(Features(rows, positions, ids, hidden))
        assert torch.equal(hidden, before), "hidden states are not to be written to"
        hidden.fill_(float("nan"))  # the engine uses the memory again
        self._seen += counts

    def _propose(self, batch: DraftBatch) -> Drafts:
        """Ask; a drafter that writes to what it is given raises."""
        for column in batch:
            column.flags.writeable = False
        try:
            return self._drafter.propose(batch)
        finally:
            self.tokens.flags.writeable = True


def check_drafts(batch: DraftBatch, drafts: Drafts, vocab_size: int) -> None:
    """Fail the test when drafts break a rule of ``Drafts``."""
    n, width = drafts.tokens.shape
    assert n == len(batch.rows), "one line for each row"
    assert drafts.counts.shape == (n,)
    assert (drafts.counts >= 0).all()
    assert (drafts.counts <= batch.limits).all(), "no more drafts than a row can use"
    assert drafts.counts.max(initial=0) <= width
    for i, count in enumerate(drafts.counts.tolist()):
        tokens = drafts.tokens[i, :count]
        assert ((tokens >= 0) & (tokens < vocab_size)).all(), "drafts are tokens of the model"
        if drafts.parents is not None:
            parents = drafts.parents[i, :count].tolist()
            assert all(-1 <= parent < j for j, parent in enumerate(parents)), "parents come first"
            children = list(zip(parents, tokens.tolist(), strict=True))
            assert len(set(children)) == len(children), "no two children are the same token"
    if drafts.probs is None:
        return
    assert drafts.parents is None, "only chains are drawn"
    assert tuple(drafts.probs.shape) == (n, width, vocab_size)
    for i in np.flatnonzero(batch.temperature > 0).tolist():
        for j in range(int(drafts.counts[i])):
            line = drafts.probs[i, j].cpu().numpy()
            assert (line >= 0).all()
            assert abs(float(line.sum()) - 1) < 1e-3, "probabilities add up to 1"
            assert line[drafts.tokens[i, j]] > 0, "what was drawn could be drawn"


class DrafterConformance:
    """Subclass it and build your drafter in ``make``."""

    def make(self) -> DrafterStrategy:
        """Build the drafter; the tests open and close it."""
        raise NotImplementedError("return your drafter, built and not opened")

    def resources(self) -> EngineResources:
        """What ``open`` is given; with a ``target``, if your drafter asks the model."""
        return engine_resources(max_running=_ROWS, max_model_len=_CONTEXT, vocab_size=16)

    @contextmanager
    def opened(self) -> Iterator[DrafterStrategy]:
        """A drafter in use."""
        drafter = self.make()
        try:
            drafter.open(self.resources())
            yield drafter
        finally:
            drafter.close()

    def play(self, drafter: DrafterStrategy, events: Sequence[tuple[str, int]]) -> list[Drafts]:
        """Let sequences come, grow and go; all drafts."""
        rows = _Rows(drafter, self.resources(), seed=events[0][1])
        for event, which in events:
            if event == "step":
                rows.step()
            else:
                rows.begin(which % _ROWS)
        return rows.answers

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    @campaign
    @given(events=_EVENTS)
    def test_drafts_keep_the_rules_while_sequences_come_and_grow(
        self, events: Sequence[tuple[str, int]]
    ) -> None:
        """Kept drafts, refused ones, rows that are not asked, rows that change hands."""
        with self.opened() as drafter:
            self.play(drafter, events)

    @campaign
    @given(events=_EVENTS)
    def test_the_same_events_give_the_same_drafts(self, events: Sequence[tuple[str, int]]) -> None:
        """Also where rows had other sequences before."""
        with self.opened() as fresh, self.opened() as used:
            self.play(used, [("step", 7), ("end", 1), ("step", 3)])
            _assert_equal(self.play(fresh, events), self.play(used, events))

    def test_a_sequence_of_one_token_and_one_that_is_almost_full_can_ask(self) -> None:
        with self.opened() as drafter:
            tokens = np.ones((_ROWS, _CONTEXT), np.int32)
            for row in range(2):
                drafter.admit(row)
            lengths, limits = np.array([1, _CONTEXT - 1]), np.array([5, 1])
            batch = DraftBatch(
                np.arange(2), lengths, limits, tokens, np.zeros(2, np.float32), np.zeros((2, 5))
            )
            check_drafts(batch, drafter.propose(batch), self.resources().vocab_size)


def _assert_equal(first: Sequence[Drafts], second: Sequence[Drafts]) -> None:
    for one, other in zip(first, second, strict=True):
        assert one.counts.tolist() == other.counts.tolist()
        for i, count in enumerate(one.counts.tolist()):
            assert one.tokens[i, :count].tolist() == other.tokens[i, :count].tolist()


class SpecControllerConformance:
    """Subclass it and build your controller in ``make``."""

    def make(self) -> SpecControllerStrategy:
        """Build the controller; the tests open and close it."""
        raise NotImplementedError("return your controller, built and not opened")

    @contextmanager
    def opened(self) -> Iterator[SpecControllerStrategy]:
        """A controller in use."""
        controller = self.make()
        try:
            controller.open(engine_resources(max_running=_ROWS))
            yield controller
        finally:
            controller.close()

    @staticmethod
    def decide(controller: SpecControllerStrategy, view: SpecView) -> np.ndarray[Any, Any]:
        """Ask, and fail the test when the answer breaks a rule of ``decide``."""
        for column in (view.rows, view.limits):
            column.flags.writeable = False
        drafts = controller.decide(view)
        assert drafts.shape == view.rows.shape, "one number for each row"
        assert drafts.dtype.kind == "i", "whole numbers"
        assert (drafts >= 0).all()
        assert (drafts <= view.limits).all(), "no more than a row can use"
        assert drafts.sum() <= view.budget, "no more than the budget in all"
        return drafts

    def play(
        self, controller: SpecControllerStrategy, steps: Sequence[tuple[list[int], int, int]]
    ) -> None:
        """Ask before each of these steps, and report what came of it."""
        for row in range(_ROWS):
            controller.admit(row)
        for limits, budget, seed in steps:
            random = np.random.default_rng(seed)
            rows = np.sort(random.permutation(_ROWS)[: len(limits)])
            view = SpecView(rows, np.array(limits, np.int64), budget, num_tokens=len(rows))
            asked = self.decide(controller, view)
            drafted = random.integers(0, asked + 1)
            accepted = random.integers(0, drafted + 1)
            seconds = float(random.random()) / 100
            count = len(rows) + int(drafted.sum())
            controller.report(
                SpecReport(rows, asked, drafted, accepted, count, seconds / 4, seconds)
            )
            if seed % 5 == 0:
                controller.admit(seed % _ROWS)

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    @campaign
    @given(steps=_STEPS)
    def test_every_decision_is_within_limits_and_budget(
        self, steps: Sequence[tuple[list[int], int, int]]
    ) -> None:
        """Whatever came of the steps before: nothing kept, all, or anything between."""
        with self.opened() as controller:
            self.play(controller, steps)

    @campaign
    @given(before=_STEPS, after=_STEPS)
    def test_one_that_takes_its_state_decides_within_limits_and_budget(
        self,
        before: Sequence[tuple[list[int], int, int]],
        after: Sequence[tuple[list[int], int, int]],
    ) -> None:
        """One that leaves no state passes."""
        with self.opened() as heir:
            with self.opened() as controller:
                self.play(controller, before)
                if not hand_over(controller, heir):
                    return
            self.play(heir, after)

    def test_a_state_of_another_form_is_refused(self) -> None:
        with self.opened() as controller:
            controller.admit(0)
            assert refuses_strange_states(controller)
            self.decide(controller, SpecView(np.arange(1), np.array([5]), 9, num_tokens=1))

    def test_without_a_budget_there_are_no_drafts(self) -> None:
        with self.opened() as controller:
            controller.admit(0)
            view = SpecView(np.arange(1), np.array([5]), 0, num_tokens=1)
            assert self.decide(controller, view).tolist() == [0]
