"""Proposal of draft tokens, within the limits of controller, free pages and token budget."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.plugin_faults import attribute_faults
from gatewayd_engine.runner.step_runner import StepRunner
from gatewayd_engine.sampling.random import DRAFT, uniform
from gatewayd_engine.scheduling.placement import Placement
from gatewayd_engine.speculation.draft_checks import (
    as_deterministic,
    check_decision,
    check_drafts,
    scatter_drafts,
)
from gatewayd_engine.speculation.feedback import Feedback
from gatewayd_engine.speculation.registration import Registration
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import BatchDrafts, StepBatch
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
"""Forced tokens per sequence of a step that make jump decoding worthwhile: verifying drafts makes a
step on a CPU about as much slower for all of its sequences."""


class Speculation:
    """Speculative decoding: drafts for a plan before its batch is gathered, and their evaluation.

    Args:
        queue: the engine's sequence table.
        rows: batch rows with the token ids.
        placement: allocates pages for drafts.
        strategies: the active drafter and controller.
        vocab: size of the vocabulary.
        runner: tells which drafts it can verify, see ``StepRunner``.

    Attributes:
        num_drafts: verifications of a sequence's drafts in a step, total since the start.
        drafted, accepted: draft tokens, totals since the start.
        accepted_at: accepted draft tokens by their position in the draft.
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
        self._registration = Registration(queue, rows, strategies)
        self._asked = np.zeros(len(rows.seed), np.int64)
        self._seconds = 0.0
        self._feedback = Feedback(
            strategies, queue, partial(self._registration.register, Kind.DRAFTER)
        )
        self.num_drafts = self.drafted = self.accepted = 0
        self.accepted_at = [0] * _MOST_REPORTED

    @property
    def is_on(self) -> bool:
        """Whether a drafter is active."""
        return Kind.DRAFTER in self._strategies.bound

    def draft(self, slots: NDArray[np.int32], counts: NDArray[np.int32]) -> BatchDrafts | None:
        """Draft tokens after the last tokens of decoding sequences.

        Args:
            slots: sequences that the step computes, shape ``[n]``.
            counts: tokens of each, shape ``[n]``.

        Returns:
            Drafts by index into ``slots``; None if there are none.
        """
        self._asked[:] = 0
        self._seconds = 0.0
        self._runner.shows_hidden = self._feedback.observes
        is_on, processors = self.is_on, self._strategies.processors
        if not is_on:
            self._registration.reset(Kind.DRAFTER)
        # Where steps overlap, a step more costs less than waiting for the previous step's tokens.
        jumps = processors.guides_any and (is_on or not self._runner.overlaps)
        if not (is_on or jumps):
            return None
        began = time.perf_counter()
        view = self._queue.view
        lengths = view.num_tokens[slots].astype(np.int64)
        is_last = view.num_computed[slots] + counts == lengths
        # Drafts follow a sequence's last token, so it has to be computed in this step.
        may_have = (counts == 1) & is_last
        if not self._runner.verifies_all:
            rows = self._queue.row[slots].astype(np.int64)
            may_have &= ~processors.changed_by_chain(rows)
        entries = np.flatnonzero(may_have)
        num_tokens = int(counts.sum())
        certain, drafts = None, None
        # Tokens forced by grammars, which are certain to be accepted.
        if jumps and len(entries):
            certain = self._forced_drafts(slots, entries, lengths, num_tokens)
            if certain is not None:
                num_tokens += int(certain.counts.sum())
                jumping = np.flatnonzero(certain.counts)
                if is_on:
                    # The drafter will be shown their results.
                    rows = self._queue.row[slots[jumping]].astype(np.int64)
                    self._registration.register(Kind.DRAFTER, slots[jumping], rows)
                entries = np.setdiff1d(entries, jumping)
        # Drafts for the remaining sequences.
        if is_on and len(entries):
            asked = self._decide(slots[entries], lengths[entries], num_tokens)
            if asked is not None:
                flush_began = time.perf_counter()
                self._feedback.flush()
                # Passing pending feedback does not count as drafting.
                began += time.perf_counter() - flush_began
                drafts = self._propose(slots, entries, lengths[entries], asked)
        self._seconds = time.perf_counter() - began
        if certain is not None and drafts is not None:
            drafts = drafts.joined(certain)
        drafts = drafts or certain
        if drafts is None:
            return None
        # Last, because the limit depends on the number of sequences with drafts.
        return drafts.cut(self._runner.most_drafts(int(np.count_nonzero(drafts.counts))))

    def _forced_drafts(
        self,
        slots: NDArray[np.int32],
        entries: NDArray[np.int64],
        lengths: NDArray[np.int64],
        num_tokens: int,
    ) -> BatchDrafts | None:
        """Draft the tokens that grammars force (jump decoding), which need no drafter."""
        processors = self._strategies.processors
        rows = self._queue.row[slots[entries]].astype(np.int64)
        budget = self._queue.view.token_budget - num_tokens
        chains: dict[int, Sequence[int]] = {}
        for i in np.flatnonzero(processors.is_guided(rows)).tolist():
            entry = int(entries[i])
            # The last token needs no draft: it is sampled along with the one before it.
            most = min(int(self._queue.limit[slots[entry]] - lengths[entry]) - 1, budget)
            if most > 0 and (chain := processors.forced_by_guide(int(rows[i]))[:most]):
                chains[entry] = chain
                budget -= len(chain)
        num_forced = sum(map(len, chains.values()))
        if not chains or (not self.is_on and num_forced < _WORTH * len(slots)):
            # Forced tokens stay forced: more of them accumulate over the next steps.
            return None
        certain = BatchDrafts.chains(len(slots), chains)
        forced = np.array(sorted(chains), np.int64)
        certain.counts[forced] = self._fit(slots[forced], lengths[forced], certain.counts[forced])
        return certain if certain.counts.any() else None

    def _decide(
        self, slots: NDArray[np.int32], lengths: NDArray[np.int64], num_tokens: int
    ) -> NDArray[np.int64] | None:
        """Return the number of drafts the controller decides on per sequence; None for none."""
        controller: SpecControllerStrategy = self._strategies.watched[Kind.SPEC_CONTROLLER]
        # The last token needs no draft: it is sampled along with the one before it.
        limits = self._queue.limit[slots] - lengths - 1
        rows = self._queue.row[slots].astype(np.int64)
        processors = self._strategies.processors
        if processors.guides_any:
            for i in np.flatnonzero(processors.is_guided(rows)).tolist():
                limits[i] = min(limits[i], processors.most_drafts(int(rows[i])))
        self._registration.register(Kind.SPEC_CONTROLLER, slots, rows)
        budget = max(self._queue.view.token_budget - num_tokens, 0)
        view = SpecView(_read_only(rows), _read_only(limits), budget, num_tokens)
        with attribute_faults(Kind.SPEC_CONTROLLER):
            asked = controller.decide(view)
            if not check_decision(asked, limits, budget):
                return None
            decided = asked.astype(np.int64)
        self._asked[rows] = decided
        return decided

    def _propose(
        self,
        slots: NDArray[np.int32],
        entries: NDArray[np.int64],
        lengths: NDArray[np.int64],
        asked: NDArray[np.int64],
    ) -> BatchDrafts | None:
        """Let the drafter propose tokens, limited to those that there are pages for."""
        drafter: DrafterStrategy = self._strategies.watched[Kind.DRAFTER]
        wants = np.flatnonzero(asked)
        entries, lengths, asked = entries[wants], lengths[wants], asked[wants]
        rows = self._queue.row[slots[entries]].astype(np.int64)
        self._registration.register(Kind.DRAFTER, slots[entries], rows)
        columns = self._rows
        most = int(asked.max())
        # Greedy requests have one correct output, and seeded ones must be reproducible.
        is_fixed = columns.is_greedy[rows] | columns.is_seeded[rows]
        # Read-only without a copy of the token table.
        tokens = columns.tokens.view()
        tokens.flags.writeable = False
        batch = DraftBatch(
            rows=_read_only(rows),
            lengths=_read_only(lengths),
            limits=_read_only(asked),
            tokens=tokens,
            temperature=np.where(is_fixed, np.float32(0), columns.temperature[rows]),
            # No numbers need to be drawn where no draft is sampled.
            uniform=np.zeros((len(rows), most))
            if is_fixed.all()
            else uniform(columns.seed[rows][:, None], lengths[:, None] + np.arange(most), DRAFT),
        )
        with attribute_faults(Kind.DRAFTER):
            drafts = drafter.propose(batch)
            check_drafts(drafts, asked, is_fixed, self._vocab)
        if not self._runner.verifies_all:
            drafts = as_deterministic(drafts, self._strategies.processors.is_guided(rows))
        counts = self._fit(slots[entries], lengths, drafts.counts)
        if not counts.any():
            return None
        return scatter_drafts(len(slots), entries, counts, drafts, is_fixed)

    def _fit(
        self,
        slots: NDArray[np.int32],
        lengths: NDArray[np.int64],
        counts: NDArray[np.int32] | NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Limit drafts to allocated pages, and to free ones not reserved for other sequences."""
        fitting = counts.astype(np.int64)
        room = self._queue.num_pages[slots] * self._rows.page_size - lengths
        for i in np.flatnonzero(counts > room).tolist():
            reach = self._placement.growth.grow_for_drafts(
                int(slots[i]), int(lengths[i] + counts[i])
            )
            fitting[i] = min(int(counts[i]), max(reach - int(lengths[i]), 0))
        return fitting

    # After the step

    def observe(self, batch: StepBatch, result: StepResult) -> None:
        """Pass the result of a step to the drafter."""
        self._feedback.record_step(batch, result)

    def report(self, batch: StepBatch, result: StepResult, seconds: float) -> None:
        """Count accepted drafts, and report them to the controller.

        Args:
            batch: the step.
            result: its result.
            seconds: its duration, drafting included.
        """
        drafts = batch.drafts
        if not (self.is_on or drafts is not None):
            return
        entries, counts = result.tokens.entries, result.tokens.counts
        if batch.num_decode < len(batch):
            # The first tokens of prompts had no drafts to accept.
            decoded = entries < batch.num_decode
            entries, counts = entries[decoded], counts[decoded]
        if not len(entries):
            return
        accepted = counts - 1
        drafted = np.zeros(len(entries), np.int64) if drafts is None else drafts.counts[entries]
        if drafts is not None:
            self._count_totals(drafted, accepted)
            self._count_by_sequence(batch, entries, drafted, accepted)
        rows = batch.rows[entries]
        # Drafts forced by a grammar tell the controller nothing.
        is_reported = (drafted == 0) | (self._asked[rows] > 0)
        if not self.is_on or not is_reported.any():
            return
        controller: SpecControllerStrategy = self._strategies.watched[Kind.SPEC_CONTROLLER]
        rows = rows[is_reported]
        report = SpecReport(
            rows=rows,
            asked=self._asked[rows],
            drafted=drafted[is_reported],
            accepted=accepted[is_reported],
            num_tokens=len(batch.ids),
            draft_seconds=self._seconds,
            step_seconds=seconds - self._seconds,
        )
        with attribute_faults(Kind.SPEC_CONTROLLER):
            controller.report(report)

    def _count_by_sequence(
        self,
        batch: StepBatch,
        entries: NDArray[np.int64],
        drafted: NDArray[np.int64],
        accepted: NDArray[np.int64],
    ) -> None:
        """Count drafts by sequence; each has one batch entry, unless it has ended in the step."""
        queue, slots = self._queue, batch.slots[entries]
        is_theirs = queue.ids[slots] == batch.sequences[entries]
        queue.drafted[slots] += np.where(is_theirs, drafted, 0).astype(np.int32)
        queue.accepted[slots] += np.where(is_theirs, accepted, 0).astype(np.int32)

    def _count_totals(self, drafted: NDArray[np.int64], accepted: NDArray[np.int64]) -> None:
        has_any = drafted > 0
        self.num_drafts += int(np.count_nonzero(has_any))
        self.drafted += int(drafted.sum())
        self.accepted += int(accepted.sum())
        for depth in range(min(int(accepted.max(initial=0)), _MOST_REPORTED)):
            self.accepted_at[depth] += int(np.count_nonzero(accepted > depth))


def _read_only(own: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a read-only copy for a strategy, because its answer is checked against it."""
    copy = own.copy()
    copy.flags.writeable = False
    return copy
