"""Says what every sequence's time was spent on, as columns once per step, and only what changed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.batch import StepBatch
from gatewayd_engine.causes import Cause
from gatewayd_engine.held import Held
from gatewayd_engine.queue import Queue


class Told(NamedTuple):
    """What is told of the time since the step before; see ``StepOutput`` for the columns."""

    moved: bytes
    causes: bytes
    shares: bytes


class Attribution:
    """Compares what sequences do with what was told of them.

    Args:
        queue: of the sequences.
        held: knows who is held for what.
    """

    def __init__(self, queue: Queue, held: Held) -> None:
        self._queue = queue
        self._held = held
        slots = len(queue.ids)
        self._ids = np.full(slots, -1, np.int64)  # of whom the columns below speak
        self._told = np.full(slots, -1, np.int8)
        self._chunked = np.zeros(slots, np.int32)  # where its last chunk ended
        self._reached = np.zeros(slots, np.int32)  # where it was when it gave way
        self._preempted: set[int] = set()
        self._base = Cause.TURN
        self.crowd = 0.0
        """Of the tokens of the last step, the share that belonged to prompts."""

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

    def preempted(self, sequence_id: int) -> None:
        """A sequence had to give way."""
        sequence = self._queue.find(sequence_id)
        if sequence is not None:
            slot = sequence.slot
            self._grow()
            self._preempted.add(slot)
            self._own(np.array([slot], np.int32))
            is_decoding = self._told[slot] == Cause.DECODE
            reached = self._queue.view.num_tokens[slot] if is_decoding else self._chunked[slot]
            self._reached[slot] = max(reached, self._reached[slot])

    def tell(self, batch: StepBatch | None) -> Told:
        """What has changed; before what a step computed is written down.

        Args:
            batch: that has been computed; None if nothing was.
        """
        self._grow()
        queue = self._queue
        found: list[tuple[NDArray[np.int64], NDArray[np.int8], NDArray[np.float32]]] = []
        self.crowd, num_computed = 0.0, 0
        if batch is not None:
            is_alive = queue.ids[batch.slots] == batch.sequences
            num_computed = int(np.count_nonzero(is_alive))
            found.append(self._computed(batch, is_alive))
        if num_computed < len(queue):
            found.append(self._waited(batch))
        if len(found) == 1:
            ids, causes, shares = found[0]
        elif found:
            ids, causes, shares = (np.concatenate(column) for column in zip(*found, strict=True))
        else:
            return Told(b"", b"", b"")
        return Told(ids.tobytes(), causes.tobytes(), shares.tobytes())

    def _computed(
        self, batch: StepBatch, is_alive: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int8], NDArray[np.float32]]:
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
        self.crowd = float(shares[is_chunk].sum())
        if is_chunk.any():
            ends = batch.starts + batch.counts
            self._chunked[slots[is_chunk]] = ends[is_chunk]
        tells = is_alive & (is_chunk | (self._told[slots] != causes))
        self._told[slots[is_alive]] = causes[is_alive]
        if self._preempted:
            self._preempted.difference_update(slots[is_alive].tolist())
        return batch.sequences[tells], causes[tells], shares[tells]

    def _waited(
        self, batch: StepBatch | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int8], NDArray[np.float32]]:
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
        slots = np.flatnonzero(is_idle)
        self._own(slots)
        slots = slots[self._told[slots] != causes[slots]]
        told = causes[slots].astype(np.int8)
        self._told[slots] = told
        return queue.ids[slots], told, np.zeros(len(slots), np.float32)

    def _own(self, slots: NDArray[np.integer]) -> None:
        """Forget what was told of others that had these slots."""
        is_new = self._ids[slots] != self._queue.ids[slots]
        if is_new.any():
            new = slots[is_new]
            self._ids[new] = self._queue.ids[new]
            self._told[new] = -1
            self._chunked[new] = self._reached[new] = 0
            self._preempted.difference_update(new.tolist())

    def _grow(self) -> None:
        more = len(self._queue.ids) - len(self._ids)
        if more > 0:
            self._ids = np.concatenate([self._ids, np.full(more, -1, np.int64)])
            self._told = np.concatenate([self._told, np.full(more, -1, np.int8)])
            self._chunked = np.concatenate([self._chunked, np.zeros(more, np.int32)])
            self._reached = np.concatenate([self._reached, np.zeros(more, np.int32)])
