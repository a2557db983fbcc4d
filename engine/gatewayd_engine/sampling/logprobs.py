"""Log-probabilities of the raw logits, for requests that ask for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.process.messages import TokenLogprobs


class LogprobColumns(NamedTuple):
    """Output of ``Kernels.logprobs`` on the host.

    Attributes:
        chosen: log-probabilities of the sampled tokens, shape ``[n]``.
        ranks: their ranks, from 1, shape ``[n]``.
        values: log-probabilities of the likeliest tokens, shape ``[n, num_top]``.
        ids: ids of these, shape ``[n, num_top]``.
    """

    chosen: NDArray[np.float32]
    ranks: NDArray[np.integer]
    values: NDArray[np.float32]
    ids: NDArray[np.integer]


def report(
    logprobs: torch.Tensor,
    sequences: Sequence[int],
    tokens: Sequence[int],
    num_top: Iterable[int],
) -> list[TokenLogprobs]:
    """Report log-probabilities of sampled tokens and their likeliest alternatives.

    Args:
        logprobs: log-probabilities of all tokens, shape ``[n, vocab]``.
        sequences: sequence id of each row.
        tokens: sampled token of each row.
        num_top: alternatives to report for each row, 0 for none.
    """
    tops = [int(n) for n in num_top]
    index = torch.tensor(tokens, dtype=torch.int64, device=logprobs.device).unsqueeze(-1)
    chosen = logprobs.gather(-1, index)
    ranks = (logprobs > chosen).sum(-1) + 1
    best, best_ids = logprobs.topk(max(tops, default=0), -1)
    figures = LogprobColumns(
        chosen.squeeze(-1).numpy(), ranks.numpy(), best.numpy(), best_ids.numpy()
    )
    return describe(sequences, tokens, tops, figures)


def describe(
    sequences: Sequence[int], tokens: Sequence[int], num_top: Iterable[int], figures: LogprobColumns
) -> list[TokenLogprobs]:
    """Convert computed log-probabilities to reports.

    Args:
        sequences: sequence id of each row.
        tokens: sampled token of each row.
        num_top: alternatives to report for each row, at most as many as were computed.
        figures: computed log-probabilities.
    """
    chosen, ranks, values, ids = (column.tolist() for column in figures)
    return [
        TokenLogprobs(
            sequence=sequences[i],
            token=tokens[i],
            logprob=chosen[i],
            rank=ranks[i],
            top_tokens=ids[i][: int(top)],
            top_logprobs=values[i][: int(top)],
        )
        for i, top in enumerate(num_top)
    ]
