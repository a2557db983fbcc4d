"""Says what every sequence's time was spent on, as columns once per step, and only what changed."""

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
from gatewayd_hooks.host.ledger import Ledger


class AttributedTime(NamedTuple):
    """What is told of the time since the step before; see ``StepOutput``."""

    moved: bytes
    causes: bytes
    shares: bytes
    reached: bytes
    crowd: float
    plugins: dict[str, float]


_Told: TypeAlias = tuple[
    NDArray[np.int64], NDArray[np.int8], NDArray[np.float32], NDArray[np.int32]
]


class Attribution(ColumnSet):
    """Compares what sequences do with what was told of them.

    Args:
        queue: of the sequences.
        held: knows who is held for what.
        ledger: knows what strategies cost.
    """

    _ids = column(np.int64, -1)  # of whom the columns below speak
    _told = column(np.int8, -1)
    _chunked = column(np.int32)  # where its last chunk ended
    _reached = column(np.int32)  # where it was when it gave way

    def __init__(self, queue: Queue, held: Deferral, ledger: Ledger) -> None:
        super().__init__(len(queue.ids))
        self._queue = queue
        self._held = held
        self._ledger = ledger
        self._preempted: set[int] = set()
        self._base = Cause.TURN

    def planned(self, computes: int) -> None:
        """Note what keeps those waiting who are not held, after a plan was carried out.

        Args:
            computes: tokens that the plan computes.
        """
        view = self._queue.view
        if view.unplaced:
            self._base = Cause.PAGES
        elif len(view.running) >= view.max_running and computes < view.token_budget:
            self._base = Cause.ROWS
        else:
            self._base = Cause.TURN

    def _gave_way(self, sequence_id: int) -> None:
        sequence = self._queue.find(sequence_id)
        if sequence is not None:
            self.lost(sequence.slot)
            self._preempted.add(sequence.slot)

    def lost(self, slot: int) -> None:
        """What a running sequence had computed is to be computed again."""
        self.grow_columns(len(self._queue.ids))
        self._own(np.array([slot], np.int32))
        is_decoding = self._told[slot] == Cause.DECODE
        reached = self._queue.view.num_tokens[slot] if is_decoding else self._chunked[slot]
        self._reached[slot] = max(reached, self._reached[slot])

    def tell(self, batch: StepBatch | None, preempted: Sequence[int]) -> AttributedTime:
        """What has changed; before what a step computed is written down.

        Args:
            batch: that has been computed; None if nothing was.
            preempted: sequences that had to give way since the last time.
        """
        self.grow_columns(len(self._queue.ids))
        for sequence_id in preempted:
            self._gave_way(sequence_id)
        queue = self._queue
        found: list[_Told] = []
        crowd, num_computed = 0.0, 0
        if batch is not None:
            is_alive = queue.ids[batch.slots] == batch.sequences
            num_computed = int(np.count_nonzero(is_alive))
            found.append(self._computed(batch, is_alive))
            _, causes, shares, _ = found[0]
            crowd = float(shares[causes != Cause.DECODE].sum())
        if num_computed < len(queue):
            found.append(self._waited(batch))
        moved, told, own, reached = (
            b"".join([column.tobytes() for column in columns])
            for columns in (zip(*found, strict=True) if found else ((), (), (), ()))
        )
        return AttributedTime(moved, told, own, reached, crowd, self._ledger.take_spent())

    def _computed(self, batch: StepBatch, is_alive: NDArray[np.bool_]) -> _Told:
        """Those of a step: chunks of prompts each time, who generates when it begins to."""
        slots = batch.slots
        self._own(slots[is_alive])
        is_first = batch.starts < self._queue.prompt_len[slots]
        is_again = batch.starts + batch.counts <= self._reached[slots]
        causes = np.where(
            is_again, Cause.RECOMPUTE, np.where(is_first, Cause.PREFILL, Cause.DECODE)
        )
        causes = causes.astype(np.int8)
        is_chunk = causes != Cause.DECODE
        shares = (batch.counts / max(1, len(batch.ids))).astype(np.float32)
        reached = np.zeros(len(slots), np.int32)
        if is_chunk.any():
            ends = batch.starts + batch.counts
            self._chunked[slots[is_chunk]] = ends[is_chunk]
            # A chunk that is computed again may have generated tokens in it.
            reached[is_chunk] = np.minimum(ends, self._queue.prompt_len[slots])[is_chunk]
        tells = is_alive & (is_chunk | (self._told[slots] != causes))
        self._told[slots[is_alive]] = causes[is_alive]
        if self._preempted:
            self._preempted.difference_update(slots[is_alive].tolist())
        return batch.sequences[tells], causes[tells], shares[tells], reached[tells]

    def _waited(self, batch: StepBatch | None) -> _Told:
        """Those that are in no step."""
        queue = self._queue
        is_idle = queue.ids >= 0
        if batch is not None:
            is_idle[batch.slots] = False
        causes = np.where(queue.row < 0, np.int8(self._base), np.int8(Cause.TURN))
        for cause, held in self._held.by_cause:
            causes[list(held)] = cause
        if self._preempted:
            causes[list(self._preempted)] = Cause.PREEMPTED
        if queue.parked:
            causes[list(queue.parked)] = Cause.HELD
        slots = np.flatnonzero(is_idle)
        self._own(slots)
        slots = slots[self._told[slots] != causes[slots]]
        told = causes[slots].astype(np.int8)
        self._told[slots] = told
        nothing = np.zeros(len(slots))
        return queue.ids[slots], told, nothing.astype(np.float32), nothing.astype(np.int32)

    def _own(self, slots: NDArray[np.integer]) -> None:
        """Forget what was told of others that had these slots."""
        is_new = self._ids[slots] != self._queue.ids[slots]
        if is_new.any():
            new = slots[is_new]
            self.clear_columns(new)
            self._ids[new] = self._queue.ids[new]
            self._preempted.difference_update(new.tolist())
