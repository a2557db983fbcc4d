"""Detection of sampled tokens that end their sequences."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.state.running_batch import RunningBatch


def find_ends(
    rows: RunningBatch,
    row: NDArray[np.int64],
    tokens: NDArray[np.int32],
    lengths: NDArray[np.int32],
    eos: NDArray[np.int32],
) -> NDArray[np.bool_]:
    """Find end-of-sequence and stop tokens where the sequence is long enough to end.

    Args:
        rows: the running batch.
        row: batch row of each token, shape ``[n]``.
        tokens: sampled token ids, shape ``[n]``.
        lengths: length of each sequence including the token, shape ``[n]``.
        eos: end-of-sequence tokens of the model.
    """
    # A model has few of them: comparing with each is cheaper than preparing a search.
    is_eos: NDArray[np.bool_] = (tokens[:, None] == eos).any(1)
    ends = is_eos & ~rows.ignores_eos[row]
    for i in np.flatnonzero(rows.has_stop_tokens[row]).tolist():
        ends[i] |= int(tokens[i]) in rows.stop_tokens[int(row[i])]
    return ends & (lengths > rows.min_len[row])
