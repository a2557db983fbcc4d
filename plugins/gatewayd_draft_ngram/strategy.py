"""Looks for the last tokens of a sequence earlier in it, and guesses what followed them there.

Prompt lookup decoding (Saxena 2023): no model, microseconds a sequence, and right where answers
copy: code, quotes, edits, extracted fields, answers about documents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gatewayd_hooks.speculation import DraftBatch, Drafts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_draft_ngram.config import NgramConfig
    from gatewayd_hooks.resources import EngineResources


class Ngram:
    """The latest of the longest repetitions; keeps nothing between steps."""

    def __init__(self, config: NgramConfig) -> None:
        self._config = config

    def open(self, resources: EngineResources) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Nothing to give back."""

    def admit(self, row: int) -> None:
        """Nothing is kept of any sequence."""

    def propose(self, batch: DraftBatch) -> Drafts:
        """Guess for each row by itself."""
        n = len(batch.rows)
        tokens = np.zeros((n, int(batch.limits.max(initial=0))), np.int32)
        counts = np.zeros(n, np.int32)
        for i in range(n):
            length = int(batch.lengths[i])
            history = batch.tokens[batch.rows[i], max(0, length - self._config.window) : length]
            followed = self._followed(history)
            if followed is not None:
                # What repeats with a period shorter than the limit goes on repeating.
                counts[i] = batch.limits[i]
                tokens[i, : counts[i]] = np.resize(followed, counts[i])
        return Drafts(tokens, counts)

    def _followed(self, history: NDArray[np.int32]) -> NDArray[np.int32] | None:
        """What stood after the last tokens when they were there before, up to the end."""
        ends = np.flatnonzero(history[:-1] == history[-1])
        best = None
        for length in range(1, self._config.max_match + 1):
            if not len(ends):
                break
            if length >= self._config.min_match:
                best = int(ends[-1])
            ends = ends[ends >= length]
            if length < len(history):
                ends = ends[history[ends - length] == history[-1 - length]]
        return None if best is None else history[best + 1 :]
