"""Conformance tests of drafters and speculation controllers, for any acceptance rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_hooks.helpers.handover import hand_over
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.speculation import (
    DraftBatch,
    DrafterStrategy,
    Drafts,
    SpecControllerStrategy,
    SpecReport,
    SpecView,
)
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.samples.campaign import campaign
from gatewayd_hooks.testing.samples.states import refuses_strange_states
from gatewayd_hooks.testing.simulation.drafting import ROWS, Rows, check_drafts

_CONTEXT = 96
_EVENTS = st.lists(
    st.tuples(st.sampled_from(["step", "step", "step", "end"]), st.integers(0, 2**20)),
    min_size=1,
    max_size=12,
)
_STEPS = st.lists(
    st.tuples(st.lists(st.integers(1, 12), max_size=ROWS), st.integers(0, 40), st.integers(0, 99)),
    min_size=1,
    max_size=20,
)


class DrafterConformance:
    """Subclass it and build your drafter in ``make``."""

    def make(self) -> DrafterStrategy:
        """Build the drafter; the tests open and close it."""
        raise NotImplementedError("return your drafter, built and not opened")

    def resources(self) -> EngineResources:
        """Return the resources for ``open``; with a ``target``, if your drafter uses the model."""
        return engine_resources(max_running=ROWS, max_model_len=_CONTEXT, vocab_size=16)

    @contextmanager
    def opened(self) -> Iterator[DrafterStrategy]:
        """Yield an opened drafter."""
        drafter = self.make()
        try:
            drafter.open(self.resources())
            yield drafter
        finally:
            drafter.close()

    def play(self, drafter: DrafterStrategy, events: Sequence[tuple[str, int]]) -> list[Drafts]:
        """Simulate sequences that start, grow and end; return all drafts."""
        rows = Rows(drafter, self.resources(), seed=events[0][1])
        for event, which in events:
            if event == "step":
                rows.step()
            else:
                rows.start_sequence(which % ROWS)
        return rows.answers

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    @campaign
    @given(events=_EVENTS)
    def test_drafts_are_valid_while_sequences_start_and_grow(
        self, events: Sequence[tuple[str, int]]
    ) -> None:
        """Accepted drafts, rejected ones, rows that are not asked, rows that are reused."""
        with self.opened() as drafter:
            self.play(drafter, events)

    @campaign
    @given(events=_EVENTS)
    def test_the_same_events_give_the_same_drafts(self, events: Sequence[tuple[str, int]]) -> None:
        """Also in rows that had other sequences before."""
        with self.opened() as fresh, self.opened() as used:
            # Other sequences first, whose state must not remain in the rows.
            self.play(used, [("step", 7), ("end", 1), ("step", 3)])
            _assert_equal(self.play(fresh, events), self.play(used, events))

    def test_sequences_of_one_token_and_almost_full_ones_get_valid_drafts(self) -> None:
        with self.opened() as drafter:
            tokens = np.ones((ROWS, _CONTEXT), np.int32)
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
        """Yield an opened controller."""
        controller = self.make()
        try:
            controller.open(engine_resources(max_running=ROWS))
            yield controller
        finally:
            controller.close()

    @staticmethod
    def decide(controller: SpecControllerStrategy, view: SpecView) -> np.ndarray[Any, Any]:
        """Call ``decide``, and fail the test when the result breaks a rule."""
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
        """Call ``decide`` before each of these steps, and report its outcome."""
        for row in range(ROWS):
            controller.admit(row)
        for limits, budget, seed in steps:
            random = np.random.default_rng(seed)
            rows = np.sort(random.permutation(ROWS)[: len(limits)])
            view = SpecView(rows, np.array(limits, np.int64), budget, num_tokens=len(rows))
            asked = self.decide(controller, view)
            drafted = random.integers(0, asked + 1)
            accepted = random.integers(0, drafted + 1)
            # Of any duration: decisions must stay valid when measurements contradict each other.
            seconds = float(random.random()) / 100
            count = len(rows) + int(drafted.sum())
            controller.report(
                SpecReport(rows, asked, drafted, accepted, count, seconds / 4, seconds)
            )
            if seed % 5 == 0:
                controller.admit(seed % ROWS)

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    @campaign
    @given(steps=_STEPS)
    def test_every_decision_is_within_limits_and_budget(
        self, steps: Sequence[tuple[list[int], int, int]]
    ) -> None:
        """For any outcome of earlier steps: no draft accepted, all, or anything between."""
        with self.opened() as controller:
            self.play(controller, steps)

    @campaign
    @given(before=_STEPS, after=_STEPS)
    def test_imported_state_decides_within_limits_and_budget(
        self,
        before: Sequence[tuple[list[int], int, int]],
        after: Sequence[tuple[list[int], int, int]],
    ) -> None:
        """A controller without exported state passes."""
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
