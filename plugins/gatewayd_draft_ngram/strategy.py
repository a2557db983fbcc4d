"""N-gram (prompt lookup) drafting: finds the last tokens earlier, and drafts what followed there.

Prompt lookup decoding (Saxena 2023): no model, microseconds per sequence, and accurate where
answers copy: code, quotes, edits, extracted fields, answers about documents.
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
    """Uses the most recent of the longest matches; has no state between steps."""

    def __init__(self, config: NgramConfig) -> None:
        self._config = config

    def open(self, resources: EngineResources) -> None:
        """Do nothing: there is nothing to load."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def admit(self, row: int) -> None:
        """Do nothing: there is no state per sequence."""

    def propose(self, batch: DraftBatch) -> Drafts:
        """Draft for each row independently."""
        n = len(batch.rows)
        tokens = np.zeros((n, int(batch.limits.max(initial=0))), np.int32)
        counts = np.zeros(n, np.int32)
        for i in range(n):
            length = int(batch.lengths[i])
            history = batch.tokens[batch.rows[i], max(0, length - self._config.window) : length]
            followed = self._followed(history)
            if followed is not None:
                # Text that repeats with a period shorter than the limit is extended periodically.
                counts[i] = batch.limits[i]
                tokens[i, : counts[i]] = np.resize(followed, counts[i])
        return Drafts(tokens, counts)

    def _followed(self, history: NDArray[np.int32]) -> NDArray[np.int32] | None:
        """Return the tokens after the best earlier match, up to the end; None without a match."""
        # Ends of all earlier matches of the last token; each round keeps those that match one token
        # more to the left.
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
