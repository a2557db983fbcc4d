"""What each sequence took of the engine's time: of every step by its share of the tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gatewayd_engine.batch import StepBatch
from gatewayd_engine.queue import Queue
from gatewayd_engine.sequence import Sequence


class Ended(NamedTuple):
    """Who has ended, and what they took; see ``StepOutput``."""

    ended: bytes
    spent: bytes


class Spending:
    """Shares steps out as they land; what is shared adds up to ``seconds``.

    Args:
        queue: of the sequences; tells who leaves it.

    Attributes:
        seconds: in which steps were computed, from when they began, or the one before had landed,
            until they had.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._by_slot = np.zeros(len(queue.ids))
        self._leaving: dict[int, float] = {}  # by id; a step that computes them has not landed
        self._ended: list[tuple[int, float]] = []
        self._landed = 0.0
        self.seconds = 0.0
        queue.on_remove = self._left

    @property
    def has_news(self) -> bool:
        """Whether somebody has ended of whom nobody was told."""
        return bool(self._ended)

    def landed(self, batch: StepBatch, began: float, now: float) -> None:
        """A step has been computed; before anything of it is written down.

        Args:
            batch: that it computed.
            began: when it was begun, seconds of a clock.
            now: when it was done.
        """
        seconds = max(0.0, now - max(began, self._landed))
        self._landed = now
        self.seconds += seconds
        queue, slots = self._queue, batch.slots
        shares = batch.counts * (seconds / int(batch.counts.sum()))
        self._grow()
        is_alive = queue.ids[slots] == batch.sequences
        self._by_slot[slots[is_alive]] += shares[is_alive]
        if not is_alive.all():
            gone = batch.sequences[~is_alive].tolist()
            for sequence, share in zip(gone, shares[~is_alive].tolist(), strict=True):
                self._ended.append((sequence, self._leaving.pop(sequence, 0.0) + share))

    def unknown(self, sequence: int) -> None:
        """Somebody is to end who is not in the queue: it never was, or has left it before."""
        if sequence not in self._leaving:
            self._ended.append((sequence, 0.0))

    def take_ended(self) -> Ended:
        """Who has ended since the last call."""
        if not self._ended:
            return Ended(b"", b"")
        ids, seconds = zip(*self._ended, strict=True)
        self._ended.clear()
        return Ended(np.array(ids, np.int64).tobytes(), np.array(seconds).tobytes())

    def _left(self, sequence: Sequence) -> None:
        slot = sequence.slot
        self._grow()
        seconds, self._by_slot[slot] = float(self._by_slot[slot]), 0.0
        if self._queue.in_flight[slot]:
            self._leaving[sequence.id] = seconds
        else:
            self._ended.append((sequence.id, seconds))

    def _grow(self) -> None:
        if more := len(self._queue.ids) - len(self._by_slot):
            self._by_slot = np.concatenate([self._by_slot, np.zeros(more)])
