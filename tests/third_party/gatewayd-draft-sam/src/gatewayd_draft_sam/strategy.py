"""Guesses what followed the longest suffix of a sequence when it stood there first.

SAM decoding (Hu et al., arXiv 2411.10666), over the sequence itself. A suffix automaton finds the
longest repetition in constant time a token, however long the sequence is and however far back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gatewayd_hooks.speculation import DraftBatch, Drafts

from gatewayd_draft_sam.automaton import SuffixAutomaton
from gatewayd_draft_sam.config import SamSettings

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources
    from numpy.typing import NDArray


class SamDrafter:
    """One automaton for each row."""

    def __init__(self, config: SamSettings) -> None:
        self._min_match = config.min_match
        self._automata: dict[int, SuffixAutomaton] = {}

    def open(self, resources: EngineResources) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Forget all sequences."""
        self._automata.clear()

    def admit(self, row: int) -> None:
        """Another sequence has this row: forget the one before."""
        self._automata.pop(row, None)

    def propose(self, batch: DraftBatch) -> Drafts:
        """Learn what has come since the last time, then guess for each row."""
        num_rows = len(batch.rows)
        tokens = np.zeros((num_rows, int(batch.limits.max(initial=0))), np.int32)
        counts = np.zeros(num_rows, np.int32)
        for i in range(num_rows):
            row = int(batch.rows[i])
            history = batch.tokens[row, : batch.lengths[i]]
            guess = self._guess(row, history)[: batch.limits[i]]
            counts[i] = len(guess)
            tokens[i, : len(guess)] = guess
        return Drafts(tokens, counts)

    def _guess(self, row: int, history: NDArray[np.int32]) -> NDArray[np.int32]:
        automaton = self._automata.setdefault(row, SuffixAutomaton())
        automaton.extend(history[len(automaton) :].tolist())
        length, end = automaton.repeated()
        return history[end:] if length >= self._min_match else history[:0]
