"""Per-sequence usage accounting: engine seconds, shared by tokens of each step, and token counts.

Both are recorded when a step completes, so that engine time always comes with tokens, and a
sequence that is aborted in the middle of a step is still accounted for.
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
"""Stands for a prompt length that is no longer known here; the gateway knows it."""


class EndedSequence(NamedTuple):
    """Sequences that have ended and their usage, as columns; see ``StepOutput``."""

    ended: bytes
    spent: bytes
    counts: bytes


@dataclass(slots=True)
class _SequenceUsage:
    """Usage of a sequence that has ended.

    Attributes:
        seconds: engine time.
        prompt_len: prompt tokens.
        reached: tokens computed or cached, of the prompt and possibly beyond.
        cached: of these, tokens found in the prefix cache at the first admission.
        generated: generated tokens.
    """

    seconds: float = 0.0
    prompt_len: int = 0
    reached: int = 0
    cached: int = 0
    generated: int = 0

    @property
    def counts(self) -> tuple[int, int, int]:
        """Prompt tokens computed or cached, the cached ones of them, and generated tokens."""
        prompt = min(self.reached, self.prompt_len)
        return prompt, min(self.cached, prompt), self.generated


class EngineTimeAccounting(ColumnSet):
    """Engine time per sequence: the duration of each step, shared in proportion to its tokens.

    The shares of all sequences add up to ``seconds``.

    Args:
        queue: the engine's sequence table; notifies of removed sequences.

    Attributes:
        seconds: total time in which steps were computed: each from its launch, or from the
            completion of the step before if that was later, until its own completion.
    """

    _by_slot = column(np.float64)  # engine seconds
    _reached = column(np.int32)  # tokens

    def __init__(self, queue: Queue) -> None:
        super().__init__(len(queue.ids))
        self._queue = queue
        self._leaving: dict[
            int, _SequenceUsage
        ] = {}  # by id; removed while a step still computes them
        self._ended: list[tuple[int, _SequenceUsage]] = []
        self._last_completed = 0.0
        self.seconds = 0.0
        queue.on_remove = self._on_removed

    @property
    def has_ended(self) -> bool:
        """Whether sequences have ended that were not reported yet."""
        return bool(self._ended)

    def record_step(self, batch: StepBatch, began: float, now: float) -> None:
        """Account for a completed step; call before its tokens are committed.

        Args:
            batch: the step.
            began: its launch, in seconds of a clock.
            now: its completion.
        """
        # Where steps overlap, the time before the previous completion belongs to the previous step.
        seconds = max(0.0, now - max(began, self._last_completed))
        self._last_completed = now
        self.seconds += seconds
        queue, slots = self._queue, batch.slots
        shares = batch.counts * (seconds / len(batch.ids))
        ends = batch.starts + batch.counts
        self.grow_columns(len(self._queue.ids))
        is_alive = queue.ids[slots] == batch.sequences
        is_whole = bool(is_alive.all())
        alive = slots if is_whole else slots[is_alive]
        self._by_slot[alive] += shares if is_whole else shares[is_alive]
        # A preempted sequence computes the same tokens again: the furthest position counts.
        reached = ends if is_whole else ends[is_alive]
        self._reached[alive] = np.maximum(self._reached[alive], reached)
        if is_whole:
            return
        # Removed since the launch: their usage so far is in `_leaving`.
        for index in np.flatnonzero(~is_alive).tolist():
            sequence = int(batch.sequences[index])
            usage = self._leaving.pop(sequence, None) or _SequenceUsage(prompt_len=_ANY)
            usage.seconds += float(shares[index])
            usage.reached = max(usage.reached, int(ends[index]))
            # The token is discarded, but it was computed, and is charged (ADR 0048).
            usage.generated += int(batch.samples[index])
            self._ended.append((sequence, usage))

    def record_unknown(self, sequence: int) -> None:
        """Record the end of a sequence that is not in the queue: never queued, or removed."""
        if sequence not in self._leaving:
            self._ended.append((sequence, _SequenceUsage()))

    def drain_ended(self) -> EndedSequence:
        """Return the sequences that ended since the last call, with their usage."""
        if not self._ended:
            return EndedSequence(b"", b"", b"")
        ids, usages = zip(*self._ended, strict=True)
        self._ended.clear()
        seconds = np.array([usage.seconds for usage in usages])
        counts = np.array([usage.counts for usage in usages], np.int32)
        return EndedSequence(
            np.array(ids, np.int64).tobytes(), seconds.tobytes(), counts.T.tobytes()
        )

    def _on_removed(self, sequence: Sequence) -> None:
        slot, queue = sequence.slot, self._queue
        self.grow_columns(len(self._queue.ids))
        # A placeholder is counted when its step completes.
        known = queue.view.num_tokens[slot] - queue.placeholders[slot]
        usage = _SequenceUsage(
            float(self._by_slot[slot]),
            sequence.prompt_len,
            int(self._reached[slot]),
            sequence.cached,
            int(known) - sequence.prompt_len,
        )
        self.clear_columns(slot)
        if queue.in_flight[slot]:
            self._leaving[sequence.id] = usage
        else:
            self._ended.append((sequence.id, usage))
