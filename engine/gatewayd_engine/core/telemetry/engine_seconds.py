"""What each sequence consumed: engine time, by its share of the tokens of steps, and tokens.

Both are recorded when a step lands, so that engine time always comes with tokens, and a sequence
that is aborted in the middle of a step is still accounted for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gatewayd_engine.state.columns import ColumnSet, column
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.state.step_batch import StepBatch

_ANY = int(np.iinfo(np.int32).max)
"""Stands for a prompt length that is no longer known here; the receiver knows it."""


class EndedSequence(NamedTuple):
    """Who has ended, and what they took; see ``StepOutput``."""

    ended: bytes
    spent: bytes
    counts: bytes


@dataclass(slots=True)
class _Took:
    """The consumption of a sequence that has ended.

    Attributes:
        seconds: engine time.
        prompt_len: tokens of its prompt.
        reached: tokens computed or cached, of the prompt and possibly beyond.
        cached: of these, found in the prefix cache when it first left the queue.
        generated: tokens.
    """

    seconds: float = 0.0
    prompt_len: int = 0
    reached: int = 0
    cached: int = 0
    generated: int = 0

    @property
    def counts(self) -> tuple[int, int, int]:
        """Tokens of the prompt, of these the cached ones, and generated ones."""
        prompt = min(self.reached, self.prompt_len)
        return prompt, min(self.cached, prompt), self.generated


class Spending(ColumnSet):
    """Shares steps out as they land; what is shared adds up to ``seconds``.

    Args:
        queue: of the sequences; tells who leaves it.

    Attributes:
        seconds: in which steps were computed, from when they began, or the one before had landed,
            until they had.
    """

    _by_slot = column(np.float64)  # engine time
    _reached = column(np.int32)  # tokens

    def __init__(self, queue: Queue) -> None:
        super().__init__(len(queue.ids))
        self._queue = queue
        self._leaving: dict[int, _Took] = {}  # by id; a step that computes them has not landed
        self._ended: list[tuple[int, _Took]] = []
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
        ends = batch.starts + batch.counts
        self.grow_columns(len(self._queue.ids))
        is_alive = queue.ids[slots] == batch.sequences
        alive = slots[is_alive]
        self._by_slot[alive] += shares[is_alive]
        # A preempted one computes the same tokens again: the furthest counts.
        self._reached[alive] = np.maximum(self._reached[alive], ends[is_alive])
        for line in np.flatnonzero(~is_alive).tolist():
            sequence = int(batch.sequences[line])
            took = self._leaving.pop(sequence, None) or _Took(prompt_len=_ANY)
            took.seconds += float(shares[line])
            took.reached = max(took.reached, int(ends[line]))
            took.generated += int(batch.samples[line])
            self._ended.append((sequence, took))

    def unknown(self, sequence: int) -> None:
        """Somebody is to end who is not in the queue: it never was, or has left it before."""
        if sequence not in self._leaving:
            self._ended.append((sequence, _Took()))

    def take_ended(self) -> EndedSequence:
        """Who has ended since the last call."""
        if not self._ended:
            return EndedSequence(b"", b"", b"")
        ids, all_took = zip(*self._ended, strict=True)
        self._ended.clear()
        seconds = np.array([took.seconds for took in all_took])
        counts = np.array([took.counts for took in all_took], np.int32)
        return EndedSequence(
            np.array(ids, np.int64).tobytes(), seconds.tobytes(), counts.T.tobytes()
        )

    def _left(self, sequence: Sequence) -> None:
        slot, queue = sequence.slot, self._queue
        self.grow_columns(len(self._queue.ids))
        known = queue.view.num_tokens[slot] - queue.placeholders[slot]
        took = _Took(
            float(self._by_slot[slot]),
            sequence.prompt_len,
            int(self._reached[slot]),
            sequence.cached,
            int(known) - sequence.prompt_len,
        )
        self.clear_columns(slot)
        if queue.in_flight[slot]:
            self._leaving[sequence.id] = took
        else:
            self._ended.append((sequence.id, took))
