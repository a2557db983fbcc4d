"""Asks the drafter for guesses, as far as the controller, the pages and the budget allow."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.batch import DraftLines, StepBatch
from gatewayd_engine.drafts import check_decision, check_drafts, first_chain
from gatewayd_engine.faults import blame
from gatewayd_engine.feedback import Feedback
from gatewayd_engine.placement import Placement
from gatewayd_engine.queue import Queue
from gatewayd_engine.result import StepResult
from gatewayd_engine.rows import Rows
from gatewayd_engine.sampling.random import DRAFT, uniform
from gatewayd_engine.strategies import Strategies
from gatewayd_hooks.speculation import (
    DraftBatch,
    DrafterStrategy,
    Drafts,
    SpecControllerStrategy,
    SpecReport,
    SpecView,
)
from gatewayd_hooks.strategy import Kind

_MOST_REPORTED = 16


class Speculation:
    """Between a plan and its batch: guesses; after the step: what became of them.

    Args:
        queue: of the sequences.
        rows: with their tokens.
        placement: finds pages for drafts.
        strategies: the drafter and the controller.
        vocab: size of the vocabulary.
        verifies_all: what the runner can verify, see ``StepRunner``.

    Attributes:
        num_drafts: times that a sequence had drafts in a step, total since the start.
        drafted, accepted: drafts, totals since the start.
        accepted_at: of those accepted, how many as the first, second, ... of their step.
    """

    def __init__(
        self,
        queue: Queue,
        rows: Rows,
        placement: Placement,
        strategies: Strategies,
        vocab: int,
        verifies_all: bool,
    ) -> None:
        self._queue = queue
        self._rows = rows
        self._placement = placement
        self._strategies = strategies
        self._vocab = vocab
        self._verifies_all = verifies_all
        self._owners: dict[Kind, NDArray[np.int64]] = {}
        self._known: dict[Kind, object] = {}
        self._asked = np.zeros(len(rows.seed), np.int64)
        self._seconds = 0.0
        self._feedback = Feedback(strategies, queue, partial(self._introduce, Kind.DRAFTER))
        self.num_drafts = self.drafted = self.accepted = 0
        self.accepted_at = [0] * _MOST_REPORTED

    @property
    def is_on(self) -> bool:
        """Whether anyone guesses."""
        return Kind.DRAFTER in self._strategies.bound

    def draft(self, slots: NDArray[np.int32], counts: NDArray[np.int32]) -> DraftLines | None:
        """Guess what comes after the last tokens of those sequences that decode.

        Args:
            slots: sequences that the step computes, shape ``[n]``.
            counts: tokens of each, shape ``[n]``.

        Returns:
            Drafts by line of ``slots``; None if there are none.
        """
        self._asked[:] = 0
        self._seconds = 0.0
        if not self.is_on:
            self._known.pop(Kind.DRAFTER, None)
            return None
        began = time.perf_counter()
        view = self._queue.view
        lengths = view.num_tokens[slots].astype(np.int64)
        is_last = view.num_computed[slots] + counts == lengths
        may_have = (counts == 1) & is_last
        if not self._verifies_all:
            rows = self._queue.row[slots].astype(np.int64)
            may_have &= ~self._strategies.processors.wanted_by(rows)
        lines = np.flatnonzero(may_have)
        drafts = None
        if len(lines):
            lengths = lengths[lines]
            asked = self._decide(slots[lines], lengths, int(counts.sum()))
            if asked is not None:
                shown = time.perf_counter()
                self._feedback.show()
                # What was put off is no part of guessing.
                began += time.perf_counter() - shown
                drafts = self._propose(slots, lines, lengths, asked)
        self._seconds = time.perf_counter() - began
        return drafts

    def _decide(
        self, slots: NDArray[np.int32], lengths: NDArray[np.int64], num_tokens: int
    ) -> NDArray[np.int64] | None:
        """How many drafts the controller gives to each of these sequences; None if to nobody."""
        controller: SpecControllerStrategy = self._strategies.watched[Kind.SPEC_CONTROLLER]
        # The last token needs no draft: it comes with the one before it.
        limits = self._queue.limit[slots] - lengths - 1
        rows = self._queue.row[slots].astype(np.int64)
        self._introduce(Kind.SPEC_CONTROLLER, slots, rows)
        budget = max(self._queue.view.token_budget - num_tokens, 0)
        view = SpecView(_shown(rows), _shown(limits), budget, num_tokens)
        with blame(Kind.SPEC_CONTROLLER):
            asked = controller.decide(view)
            if not check_decision(asked, limits, budget):
                return None
            decided = asked.astype(np.int64)
        self._asked[rows] = decided
        return decided

    def _propose(
        self,
        slots: NDArray[np.int32],
        lines: NDArray[np.int64],
        lengths: NDArray[np.int64],
        asked: NDArray[np.int64],
    ) -> DraftLines | None:
        """Let the drafter guess; what it has drawn and what there is no page for is settled."""
        drafter: DrafterStrategy = self._strategies.watched[Kind.DRAFTER]
        wants = np.flatnonzero(asked)
        lines, lengths, asked = lines[wants], lengths[wants], asked[wants]
        rows = self._queue.row[slots[lines]].astype(np.int64)
        self._introduce(Kind.DRAFTER, slots[lines], rows)
        columns = self._rows
        most = int(asked.max())
        # Greedy requests have one right answer, and seeded ones repeat theirs.
        is_fixed = columns.is_greedy[rows] | columns.is_seeded[rows]
        tokens = columns.tokens.view()
        tokens.flags.writeable = False
        batch = DraftBatch(
            rows=_shown(rows),
            lengths=_shown(lengths),
            limits=_shown(asked),
            tokens=tokens,
            temperature=np.where(is_fixed, np.float32(0), columns.temperature[rows]),
            uniform=np.zeros((len(rows), most))
            if is_fixed.all()
            else uniform(columns.seed[rows][:, None], lengths[:, None] + np.arange(most), DRAFT),
        )
        with blame(Kind.DRAFTER):
            drafts = drafter.propose(batch)
            check_drafts(drafts, asked, is_fixed, self._vocab)
        if not self._verifies_all:
            drafts = first_chain(drafts)
        counts = self._fit(slots[lines], lengths, drafts.counts)
        if not counts.any():
            return None
        return self._by_line(len(slots), lines, counts, drafts, is_fixed)

    def _fit(
        self, slots: NDArray[np.int32], lengths: NDArray[np.int64], counts: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """Drafts get the pages that nobody else may need soon."""
        fitting = counts.astype(np.int64)
        room = self._queue.num_pages[slots] * self._rows.page_size - lengths
        for i in np.flatnonzero(counts > room).tolist():
            reach = self._placement.stretch(int(slots[i]), int(lengths[i] + counts[i]))
            fitting[i] = min(int(counts[i]), max(reach - int(lengths[i]), 0))
        return fitting

    @staticmethod
    def _by_line(
        num_lines: int,
        lines: NDArray[np.int64],
        counts: NDArray[np.int64],
        drafts: Drafts,
        is_fixed: NDArray[np.bool_],
    ) -> DraftLines:
        width = int(counts.max())
        own = np.arange(width) < counts[:, None]
        all_counts = np.zeros(num_lines, np.int64)
        all_counts[lines] = counts
        tokens = np.zeros((num_lines, width), np.int32)
        tokens[lines] = np.where(own, drafts.tokens[:, :width], 0)
        parents = None
        if drafts.parents is not None:
            parents = np.full((num_lines, width), -1, np.int32)
            parents[lines] = np.where(own, drafts.parents[:, :width], -1)
        source = np.full(num_lines, -1, np.int64)
        if drafts.probs is not None:
            source[lines] = np.where(is_fixed, -1, np.arange(len(lines)))
        return DraftLines(all_counts, tokens, parents, drafts.probs, source)

    def _introduce(self, kind: Kind, slots: NDArray[np.int32], rows: NDArray[np.int64]) -> None:
        """Tell a strategy which of these rows have another sequence than it knows."""
        strategy = self._strategies.bound[kind]
        if self._known.get(kind) is not strategy:
            self._known[kind] = strategy
            self._owners[kind] = np.full(len(self._rows.seed), -1, np.int64)
        owners, ids = self._owners[kind], self._queue.ids[slots]
        strategy = self._strategies.watched[kind]
        new = np.flatnonzero(owners[rows] != ids)
        if len(new):
            with blame(kind):
                for i in new.tolist():
                    strategy.admit(int(rows[i]))
            owners[rows[new]] = ids[new]

    # After the step

    def observe(self, batch: StepBatch, result: StepResult) -> None:
        """Show the drafter what it wants to see of a step."""
        self._feedback.give(batch, result)

    def report(self, batch: StepBatch, result: StepResult, seconds: float) -> None:
        """Count what was kept, and let the controller learn from it.

        Args:
            batch: the step.
            result: what came of it.
            seconds: that it took, guessing included.
        """
        if not self.is_on:
            return
        lines, counts = result.tokens.lines, result.tokens.counts
        if batch.num_decode < len(batch):
            decoded = lines < batch.num_decode
            lines, counts = lines[decoded], counts[decoded]
        if not len(lines):
            return
        drafts, accepted = batch.drafts, counts - 1
        drafted = np.zeros(len(lines), np.int64) if drafts is None else drafts.counts[lines]
        if drafts is not None:
            self._count(drafted, accepted)
        controller: SpecControllerStrategy = self._strategies.watched[Kind.SPEC_CONTROLLER]
        rows = batch.rows[lines]
        report = SpecReport(
            rows=rows,
            asked=self._asked[rows],
            drafted=drafted,
            accepted=accepted,
            num_tokens=len(batch.ids),
            draft_seconds=self._seconds,
            step_seconds=seconds - self._seconds,
        )
        with blame(Kind.SPEC_CONTROLLER):
            controller.report(report)

    def _count(self, drafted: NDArray[np.int64], accepted: NDArray[np.int64]) -> None:
        has_any = drafted > 0
        self.num_drafts += int(np.count_nonzero(has_any))
        self.drafted += int(drafted.sum())
        self.accepted += int(accepted.sum())
        for depth in range(min(int(accepted.max(initial=0)), _MOST_REPORTED)):
            self.accepted_at[depth] += int(np.count_nonzero(accepted > depth))


def _shown(own: NDArray[np.int64]) -> NDArray[np.int64]:
    """What a strategy is shown of an array that its answer is checked against."""
    shown = own.copy()
    shown.flags.writeable = False
    return shown
