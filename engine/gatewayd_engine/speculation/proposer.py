"""Asks the drafter for guesses, as far as the controller, the pages and the budget allow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.plugin_faults import blame
from gatewayd_engine.runner.cpu import StepRunner
from gatewayd_engine.sampling.random import DRAFT, uniform
from gatewayd_engine.scheduling.placement import Placement
from gatewayd_engine.speculation.draft_checks import (
    as_chosen,
    check_decision,
    check_drafts,
    drafts_by_line,
)
from gatewayd_engine.speculation.feedback import Feedback
from gatewayd_engine.speculation.registration import Registration
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import DraftLines, StepBatch
from gatewayd_engine.state.step_result import StepResult
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.speculation import (
    DraftBatch,
    DrafterStrategy,
    SpecControllerStrategy,
    SpecReport,
    SpecView,
)
from gatewayd_hooks.strategy import Kind

_MOST_REPORTED = 16
_WORTH = 0.25
"""Tokens of each sequence in a step that must be forced for a jump: with drafts a step takes about
as much longer on a CPU, for all of its sequences."""


class Speculation:
    """Between a plan and its batch: guesses; after the step: what became of them.

    Args:
        queue: of the sequences.
        rows: with their tokens.
        placement: finds pages for drafts.
        strategies: the drafter and the controller.
        vocab: size of the vocabulary.
        runner: what it can verify, see ``StepRunner``.

    Attributes:
        num_drafts: times that a sequence had drafts in a step, total since the start.
        drafted, accepted: drafts, totals since the start.
        accepted_at: of those accepted, how many as the first, second, ... of their step.
    """

    def __init__(
        self,
        queue: Queue,
        rows: RunningBatch,
        placement: Placement,
        strategies: Strategies,
        vocab: int,
        runner: StepRunner,
    ) -> None:
        self._queue = queue
        self._rows = rows
        self._placement = placement
        self._strategies = strategies
        self._vocab = vocab
        self._runner = runner
        self._introductions = Registration(queue, rows, strategies)
        self._asked = np.zeros(len(rows.seed), np.int64)
        self._seconds = 0.0
        self._feedback = Feedback(
            strategies, queue, partial(self._introductions.make, Kind.DRAFTER)
        )
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
        self._runner.shows_hidden = self._feedback.observes
        is_on, processors = self.is_on, self._strategies.processors
        if not is_on:
            self._introductions.forget(Kind.DRAFTER)
        # Where steps overlap a step more costs less than knowing the tokens of the one before.
        jumps = processors.guides_any and (is_on or not self._runner.overlaps)
        if not (is_on or jumps):
            return None
        began = time.perf_counter()
        view = self._queue.view
        lengths = view.num_tokens[slots].astype(np.int64)
        is_last = view.num_computed[slots] + counts == lengths
        may_have = (counts == 1) & is_last
        if not self._runner.verifies_all:
            rows = self._queue.row[slots].astype(np.int64)
            may_have &= ~processors.changed_by_chain(rows)
        lines = np.flatnonzero(may_have)
        num_tokens = int(counts.sum())
        certain, drafts = None, None
        if jumps and len(lines):
            certain = self._jump(slots, lines, lengths, num_tokens)
            if certain is not None:
                num_tokens += int(certain.counts.sum())
                jumping = np.flatnonzero(certain.counts)
                if is_on:
                    # What comes of them it will be shown.
                    rows = self._queue.row[slots[jumping]].astype(np.int64)
                    self._introductions.make(Kind.DRAFTER, slots[jumping], rows)
                lines = np.setdiff1d(lines, jumping)
        if is_on and len(lines):
            asked = self._decide(slots[lines], lengths[lines], num_tokens)
            if asked is not None:
                shown = time.perf_counter()
                self._feedback.show()
                # What was put off is no part of guessing.
                began += time.perf_counter() - shown
                drafts = self._propose(slots, lines, lengths[lines], asked)
        self._seconds = time.perf_counter() - began
        if certain is not None and drafts is not None:
            drafts = drafts.joined(certain)
        drafts = drafts or certain
        if drafts is None:
            return None
        return drafts.cut(self._runner.most_drafts(int(np.count_nonzero(drafts.counts))))

    def _jump(
        self,
        slots: NDArray[np.int32],
        lines: NDArray[np.int64],
        lengths: NDArray[np.int64],
        num_tokens: int,
    ) -> DraftLines | None:
        """What grammars force to come next needs no drafter: several tokens take one step."""
        processors = self._strategies.processors
        rows = self._queue.row[slots[lines]].astype(np.int64)
        budget = self._queue.view.token_budget - num_tokens
        chains: dict[int, Sequence[int]] = {}
        for i in np.flatnonzero(processors.is_guided(rows)).tolist():
            line = int(lines[i])
            # The last token needs no draft: it comes with the one before it.
            most = min(int(self._queue.limit[slots[line]] - lengths[line]) - 1, budget)
            if most > 0 and (chain := processors.forced_by_guide(int(rows[i]))[:most]):
                chains[line] = chain
                budget -= len(chain)
        num_forced = sum(map(len, chains.values()))
        if not chains or (not self.is_on and num_forced < _WORTH * len(slots)):
            # What is forced stays so: by and by there is more of it.
            return None
        certain = DraftLines.chains(len(slots), chains)
        forced = np.array(sorted(chains), np.int64)
        certain.counts[forced] = self._fit(slots[forced], lengths[forced], certain.counts[forced])
        return certain if certain.counts.any() else None

    def _decide(
        self, slots: NDArray[np.int32], lengths: NDArray[np.int64], num_tokens: int
    ) -> NDArray[np.int64] | None:
        """How many drafts the controller gives to each of these sequences; None if to nobody."""
        controller: SpecControllerStrategy = self._strategies.watched[Kind.SPEC_CONTROLLER]
        # The last token needs no draft: it comes with the one before it.
        limits = self._queue.limit[slots] - lengths - 1
        rows = self._queue.row[slots].astype(np.int64)
        processors = self._strategies.processors
        if processors.guides_any:
            for i in np.flatnonzero(processors.is_guided(rows)).tolist():
                limits[i] = min(limits[i], processors.most_drafts(int(rows[i])))
        self._introductions.make(Kind.SPEC_CONTROLLER, slots, rows)
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
        self._introductions.make(Kind.DRAFTER, slots[lines], rows)
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
        if not self._runner.verifies_all:
            drafts = as_chosen(drafts, self._strategies.processors.is_guided(rows))
        counts = self._fit(slots[lines], lengths, drafts.counts)
        if not counts.any():
            return None
        return drafts_by_line(len(slots), lines, counts, drafts, is_fixed)

    def _fit(
        self,
        slots: NDArray[np.int32],
        lengths: NDArray[np.int64],
        counts: NDArray[np.int32] | NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Drafts get the pages that nobody else may need soon."""
        fitting = counts.astype(np.int64)
        room = self._queue.num_pages[slots] * self._rows.page_size - lengths
        for i in np.flatnonzero(counts > room).tolist():
            reach = self._placement.growth.stretch(int(slots[i]), int(lengths[i] + counts[i]))
            fitting[i] = min(int(counts[i]), max(reach - int(lengths[i]), 0))
        return fitting

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
        drafts = batch.drafts
        if not (self.is_on or drafts is not None):
            return
        lines, counts = result.tokens.lines, result.tokens.counts
        if batch.num_decode < len(batch):
            decoded = lines < batch.num_decode
            lines, counts = lines[decoded], counts[decoded]
        if not len(lines):
            return
        accepted = counts - 1
        drafted = np.zeros(len(lines), np.int64) if drafts is None else drafts.counts[lines]
        if drafts is not None:
            self._count(drafted, accepted)
            self._note(batch, lines, drafted, accepted)
        rows = batch.rows[lines]
        # What was certain is no news to a controller.
        told = (drafted == 0) | (self._asked[rows] > 0)
        if not self.is_on or not told.any():
            return
        controller: SpecControllerStrategy = self._strategies.watched[Kind.SPEC_CONTROLLER]
        rows = rows[told]
        report = SpecReport(
            rows=rows,
            asked=self._asked[rows],
            drafted=drafted[told],
            accepted=accepted[told],
            num_tokens=len(batch.ids),
            draft_seconds=self._seconds,
            step_seconds=seconds - self._seconds,
        )
        with blame(Kind.SPEC_CONTROLLER):
            controller.report(report)

    def _note(
        self,
        batch: StepBatch,
        lines: NDArray[np.int64],
        drafted: NDArray[np.int64],
        accepted: NDArray[np.int64],
    ) -> None:
        """Count for each sequence, which has one line of a step, unless it has ended with it."""
        queue, slots = self._queue, batch.slots[lines]
        is_theirs = queue.ids[slots] == batch.sequences[lines]
        queue.drafted[slots] += np.where(is_theirs, drafted, 0).astype(np.int32)
        queue.accepted[slots] += np.where(is_theirs, accepted, 0).astype(np.int32)

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
