"""Which of the sampled tokens end their sequences."""

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
    """Find end tokens of the model and of the requests, where they may end anything.

    Args:
        rows: the running rows.
        row: whose tokens they are, shape ``[n]``.
        tokens: what was sampled, shape ``[n]``.
        lengths: tokens that each has with it, shape ``[n]``.
        eos: end tokens of the model.
    """
    # A model has few of them: comparing with each costs less than preparing a search.
    is_eos: NDArray[np.bool_] = (tokens[:, None] == eos).any(1)
    ends = is_eos & ~rows.ignores_eos[row]
    for i in np.flatnonzero(rows.has_stop_tokens[row]).tolist():
        ends[i] |= int(tokens[i]) in rows.stop_tokens[int(row[i])]
    return ends & (lengths > rows.min_len[row])
