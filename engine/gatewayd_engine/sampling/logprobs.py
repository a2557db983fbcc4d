"""Log-probabilities of the raw logits, for those rows that ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.process.messages import TokenLogprobs


class LogprobColumns(NamedTuple):
    """What ``Kernels.logprobs`` gives, on the host.

    Attributes:
        chosen: log-probabilities of the chosen tokens, shape ``[n]``.
        ranks: their ranks, from 1 on, shape ``[n]``.
        values: log-probabilities of the likeliest, shape ``[n, num_top]``.
        ids: and which they are, shape ``[n, num_top]``.
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
    """Describe chosen tokens and their best alternatives.

    Args:
        logprobs: of the raw logits, shape ``[n, vocab]``.
        sequences: id of each line's sequence.
        tokens: the token chosen at each line.
        num_top: alternatives to report for each line, 0 for none.
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
    """Make reports of figures that have been worked out.

    Args:
        sequences: id of each line's sequence.
        tokens: the token chosen at each line.
        num_top: alternatives to report for each line, at most as many as the figures have.
        figures: by line.
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
