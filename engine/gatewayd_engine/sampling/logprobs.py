"""Log-probabilities of the raw logits, for those rows that ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from gatewayd_engine.messages import TokenLogprobs


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
    most = max(tops, default=0)
    index = torch.tensor(tokens, dtype=torch.int64, device=logprobs.device).unsqueeze(-1)
    chosen = logprobs.gather(-1, index)
    ranks = ((logprobs > chosen).sum(-1) + 1).tolist()
    best, best_ids = logprobs.topk(most, -1)
    values, ids = best.tolist(), best_ids.tolist()
    return [
        TokenLogprobs(
            sequence=sequences[i],
            token=tokens[i],
            logprob=value,
            rank=ranks[i],
            top_tokens=ids[i][: tops[i]],
            top_logprobs=values[i][: tops[i]],
        )
        for i, value in enumerate(chosen.squeeze(-1).tolist())
    ]
