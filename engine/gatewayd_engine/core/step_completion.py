"""Completion of a step: commits its tokens, reports them, and ends finished sequences."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.core.lifecycle import SequenceLifecycle
from gatewayd_engine.core.prompt_compaction import Compactor
from gatewayd_engine.core.telemetry.engine_seconds import EngineTimeAccounting
from gatewayd_engine.core.token_commit import commit_tokens, visible_logprobs, with_sequence_ids
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.messages import ERROR, LENGTH, STOP, StepOutput
from gatewayd_engine.scheduling.placement import Placement
from gatewayd_engine.speculation.proposer import Speculation
from gatewayd_engine.state.in_flight import InFlightSteps, mark_completed
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import StepResult

_log = logging.getLogger(__name__)
NO_STATS = EngineStats()
"""Placeholder until the step is over."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StepCompletion:
    """Processing of the results of computed steps.

    Args:
        queue: the engine's sequence table.
        rows: batch rows with the token ids.
        pages: page allocator.
        placement: publishes filled pages to the prefix cache.
        lifecycle: ends and forks sequences.
        speculation: feeds verification results back to the drafter.
        engine_time: shares out the time that steps take.
        compactor: compacts prompts that are complete.
        eos: end-of-sequence tokens of the model.
    """

    _queue: Queue
    _rows: RunningBatch
    _pages: Pages
    _placement: Placement
    _lifecycle: SequenceLifecycle
    _speculation: Speculation
    _engine_time: EngineTimeAccounting
    _compactor: Compactor
    _eos: NDArray[np.int32]

    def complete(self, flight: InFlightSteps, began: float, *, is_last: bool) -> StepOutput:
        """Wait for a step and commit what it produced.

        Args:
            flight: the launched step.
            began: start of the engine step, in seconds of ``time.perf_counter``.
            is_last: whether no other step has been launched since.
        """
        batch, result = flight.batch, flight.launched.result()
        self._engine_time.record_step(batch, flight.began, time.perf_counter())
        # All were released before a later step was planned, so only this one could write to them.
        self._pages.release_deferred()
        # A later step in flight may still write to the pages of sequences that end below.
        self._pages.defers = not is_last
        is_alive = mark_completed(self._queue, batch)
        if not is_alive.all():
            result = result.of(is_alive, batch.rows)
        # Before sequences end, because it refers to their rows.
        self._lifecycle.recovery.fenced(
            partial(self._speculation.observe, batch, result), redo=False
        )
        output = self._commit(batch, result, is_alive)
        self._lifecycle.recovery.fenced(
            # After the commit, which drops tokens beyond the end of a sequence.
            lambda: self._speculation.report(batch, result, time.perf_counter() - began),
            redo=False,
        )
        return output

    def complete_last(self, flight: InFlightSteps) -> None:
        """Complete the final step; if it fails, its results are discarded."""
        try:
            self.complete(flight, time.perf_counter(), is_last=True)
        except Exception as error:  # noqa: BLE001 - any failure; the cached pages can still be saved
            _log.warning("last step lost: %r", error)
            # Its results are unknown, and the pages it held can be freed.
            self._pages.defers = False
            self._pages.release_deferred()

    def _commit(
        self, batch: StepBatch, result: StepResult, is_alive: NDArray[np.bool_]
    ) -> StepOutput:
        queue, ids = self._queue, batch.sequences
        tokens, lost = result.tokens, result.lost
        committed = commit_tokens(queue, self._rows, batch, tokens, self._eos)
        slots = batch.slots[tokens.entries]
        for of, end in result.reported:
            self._rows.reported[of] = end
        failed = result.failed + [(i, *lost[i]) for i in lost]
        if result.failed:
            # Pages of a failed sequence may hold NaN, and must not be shared.
            is_alive = is_alive.copy()
            is_alive[[entry for entry, _, _ in result.failed]] = False
        # While the sequences still hold their pages: those that end below release them.
        self._publish(batch.slots[is_alive])
        over, begins = committed.over, committed.begins
        if lost:
            # These are ended once, below, with an error.
            stays = ~np.isin(tokens.entries, list(lost))
            over, begins = over & stays, begins & stays
        for i in over.nonzero()[0].tolist():
            stop = int(committed.stop[i])
            if stop >= 0:
                self._lifecycle.finish(queue[int(slots[i])], STOP, stop_token=stop)
            else:
                self._lifecycle.finish(queue[int(slots[i])], LENGTH)
        # Their prompts are complete. A sequence that ends with its first token forks in `finish`.
        self._lifecycle.fork(slots[begins])
        for entry, code, sentence in failed:
            sequence = queue[int(batch.slots[entry])]
            # Before its pages are released to others.
            self._placement.scrub(sequence)
            self._lifecycle.finish(sequence, ERROR, error=(code, sentence))
        # Last, because compaction may preempt sequences whose tokens must be committed by then.
        self._lifecycle.recovery.fenced(
            partial(self._compactor.compact_completed, batch), redo=False
        )
        # Entry by entry: the tokens of a sequence are consecutive.
        whose, shown = ids[tokens.entries], tokens.ids
        if shown.shape[1] > 1 or not committed.visible.all():
            whose = np.repeat(whose, committed.visible)
            shown = shown[np.arange(shown.shape[1]) < committed.visible[:, None]]
        return StepOutput(
            stats=NO_STATS,
            sequences=whose.tobytes(),
            tokens=shown.tobytes(),
            logprobs=with_sequence_ids(
                visible_logprobs(result.logprobs, tokens.entries, committed.visible), ids
            ),
            prompt_logprobs=with_sequence_ids(result.prompt_logprobs, ids),
            pooled=with_sequence_ids(result.pooled, ids),
        )

    def _publish(self, slots: NDArray[np.int32]) -> None:
        self._lifecycle.recovery.fenced(lambda: self._placement.prefixes.publish(slots), redo=False)
