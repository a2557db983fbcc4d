"""Calls of drafters, for tests."""

from collections.abc import Sequence

import numpy as np

from gatewayd_hooks.speculation import DraftBatch


def batch_of(rows: Sequence[Sequence[int]], limit: int, temperature: float = 0.0) -> DraftBatch:
    """Rows 0, 1, ... with these tokens, which may all have as many drafts."""
    n = len(rows)
    tokens = np.zeros((n, 96), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    return DraftBatch(
        np.arange(n),
        np.array([len(row) for row in rows]),
        np.full(n, limit),
        tokens,
        np.full(n, temperature, np.float32),
        np.random.default_rng(0).random((n, limit)),
    )
