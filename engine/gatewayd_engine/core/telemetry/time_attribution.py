"""Per-sequence time attribution: once per step, as columns, and only for causes that changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.time_causes import Cause
from gatewayd_engine.scheduling.deferral import Deferral
from gatewayd_engine.state.columns import ColumnSet, column
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_hooks.host.plugin_times import PluginTimes


class AttributedTime(NamedTuple):
    """Causes of the time since the previous step, as columns; see ``StepOutput``."""

    moved: bytes
    causes: bytes
    shares: bytes
    reached: bytes
    crowd: float
    plugins: dict[str, float]


_Columns: TypeAlias = tuple[
    NDArray[np.int64], NDArray[np.int8], NDArray[np.float32], NDArray[np.int32]
]
_NOTHING: _Columns = (
    np.zeros(0, np.int64),
    np.zeros(0, np.int8),
    np.zeros(0, np.float32),
    np.zeros(0, np.int32),
)
_DECODE = int(Cause.DECODE)


class TimeAttribution(ColumnSet):
    """Report of sequences whose current activity differs from the last reported one.

    Args:
        queue: the engine's sequence table.
        deferral: waiting sequences that are deferred, by cause.
        plugin_times: call times of the strategies.
    """

    _ids = column(np.int64, -1)  # sequence that the columns below describe
    _reported = column(np.int8, -1)
    _chunked = column(np.int32)  # end of its last prefill chunk
    _reached = column(np.int32)  # tokens it had computed when it was preempted

    def __init__(self, queue: Queue, deferral: Deferral, plugin_times: PluginTimes) -> None:
        super().__init__(len(queue.ids))
        self._queue = queue
        self._deferral = deferral
        self._plugin_times = plugin_times
        self._preempted: set[int] = set()
        self._base = Cause.TURN

    def record_plan(self, computes: int) -> None:
        """Choose the cause for undeferred waiting sequences, after a plan was carried out.

        Args:
            computes: tokens that the plan computes.
        """
        view = self._queue.view
        if view.unplaced:
            self._base = Cause.PAGES
        # Rows are the limiting resource only if the step has tokens left.
        elif len(view.running) >= view.max_running and computes < view.token_budget:
            self._base = Cause.ROWS
        else:
            self._base = Cause.TURN

    def record_preempted(self, sequence_ids: Sequence[int]) -> None:
        """Record preemptions: the sequences wait, and recompute what they had computed."""
        for sequence_id in sequence_ids:
            sequence = self._queue.find(sequence_id)
            if sequence is not None:
                self.mark_lost(sequence.slot)
                self._preempted.add(sequence.slot)

    def mark_lost(self, slot: int) -> None:
        """Mark the computed tokens of a preempted sequence as to be recomputed."""
        self.grow_columns(len(self._queue.ids))
        self._reset_reused(np.array([slot], np.int32))
        # Chunk ends are recorded for prefill only: a decoding sequence has computed all tokens.
        is_decoding = self._reported[slot] == Cause.DECODE
        reached = self._queue.view.num_tokens[slot] if is_decoding else self._chunked[slot]
        # A second preemption during the recomputation must not lower it.
        self._reached[slot] = max(reached, self._reached[slot])

    def collect(self, batch: StepBatch | None, preempted: Sequence[int]) -> AttributedTime:
        """Return what has changed since the last call; call before a step's tokens are committed.

        Args:
            batch: the step that has been computed; None if nothing was.
            preempted: ids of sequences preempted since the last call.
        """
        self.grow_columns(len(self._queue.ids))
        self.record_preempted(preempted)
        queue = self._queue
        found: list[_Columns] = []
        crowd, num_computed = 0.0, 0
        if batch is not None:
            is_alive = queue.ids[batch.slots] == batch.sequences
            num_computed = int(np.count_nonzero(is_alive))
            columns = self._computed(batch, is_alive)
            # In most steps all sequences go on decoding.
            if len(columns[0]):
                found.append(columns)
                _, step_causes, step_shares, _ = columns
                crowd = float(step_shares[step_causes != Cause.DECODE].sum())
        if num_computed < len(queue):
            found.append(self._waited(batch))
        spent = self._plugin_times.take_spent()
        if not found:
            return AttributedTime(b"", b"", b"", b"", crowd, spent)
        moved, causes, shares, reached = (
            b"".join([column.tobytes() for column in columns])
            for columns in zip(*found, strict=True)
        )
        return AttributedTime(moved, causes, shares, reached, crowd, spent)

    def _computed(self, batch: StepBatch, is_alive: NDArray[np.bool_]) -> _Columns:
        """Attribute a step: prefill chunks always, decoding only when it starts."""
        slots, num_alive = batch.slots, int(np.count_nonzero(is_alive))
        alive = slots if num_alive == len(slots) else slots[is_alive]
        self._reset_reused(alive)
        is_first = batch.starts < self._queue.prompt_len[slots]
        ends = batch.starts + batch.counts
        # A chunk that extends beyond the lost tokens makes progress: prefill or decoding.
        is_again = ends <= self._reached[slots]
        is_chunk = is_first | is_again
        if self._preempted:
            self._preempted.difference_update(alive.tolist())
        if not is_chunk.any() and bool((self._reported[alive] == _DECODE).all()):
            return _NOTHING
        causes = np.full(len(slots), _DECODE, np.int8)
        causes[is_first] = Cause.PREFILL
        causes[is_again] = Cause.RECOMPUTE
        shares = (batch.counts / max(1, len(batch.ids))).astype(np.float32)
        reached = np.zeros(len(slots), np.int32)
        self._chunked[slots[is_chunk]] = ends[is_chunk]
        # A recomputed chunk may extend into generated tokens.
        reached[is_chunk] = np.minimum(ends, self._queue.prompt_len[slots])[is_chunk]
        changed = is_alive & (is_chunk | (self._reported[slots] != causes))
        self._reported[alive] = causes[is_alive]
        return batch.sequences[changed], causes[changed], shares[changed], reached[changed]

    def _waited(self, batch: StepBatch | None) -> _Columns:
        """Attribute the time of the sequences that were not in the step."""
        queue = self._queue
        is_idle = queue.ids >= 0
        if batch is not None:
            is_idle[batch.slots] = False
        # From the weakest cause to the strongest: later assignments take precedence.
        causes = np.where(queue.row < 0, np.int8(self._base), np.int8(Cause.TURN))
        for cause, deferred in self._deferral.by_cause:
            causes[list(deferred)] = cause
        if self._preempted:
            causes[list(self._preempted)] = Cause.PREEMPTED
        if queue.paused:
            causes[list(queue.paused)] = Cause.HELD
        slots = np.flatnonzero(is_idle)
        self._reset_reused(slots)
        slots = slots[self._reported[slots] != causes[slots]]
        changed = causes[slots].astype(np.int8)
        self._reported[slots] = changed
        nothing = np.zeros(len(slots))
        return queue.ids[slots], changed, nothing.astype(np.float32), nothing.astype(np.int32)

    def _reset_reused(self, slots: NDArray[np.integer]) -> None:
        """Reset the columns of slots that belong to a new sequence."""
        is_new = self._ids[slots] != self._queue.ids[slots]
        if is_new.any():
            new = slots[is_new]
            self.clear_columns(new)
            self._ids[new] = self._queue.ids[new]
            self._preempted.difference_update(new.tolist())
