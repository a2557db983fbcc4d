"""Near ties in sampling: whether two tokens may both be right, judged in float64."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gatewayd_engine.kernels.sampling.torch_sampling import bits, gumbel, keys

SHARE = 1e-5
"""Of a line's weight. Sums of a vocabulary in float32 differ by less, whatever their order."""
SCORE = 1e-4
"""Between the scores of two tokens: float32 logits over a temperature, and logarithms."""


class Filters(NamedTuple):
    """How one line is drawn."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


def may_differ(logits: torch.Tensor, how: Filters, position: int, one: int, other: int) -> bool:
    """Whether rounding decides between two tokens: they score alike, or a filter ends at one.

    Args:
        logits: of the line, shape ``[vocab]``.
        how: its row of the sampling columns.
        position: of the token that is drawn.
        one: a token that was drawn.
        other: another one.
    """
    if how.temperature < 1e-7:
        return False
    exact = logits.double()
    weight = ((exact - exact.max()) / how.temperature).exp()
    if 0 < how.top_k < len(exact):
        weight = weight * (exact >= exact.topk(how.top_k).values[-1])
    total = weight.sum()

    def is_edge(token: int) -> bool:
        before = weight[exact > exact[token]].sum() / total
        at_top_p = how.top_p < 1 and abs(float(before) - how.top_p) < SHARE
        return at_top_p or (how.min_p > 0 and abs(float(weight[token]) - how.min_p) < SHARE)

    if is_edge(one) or is_edge(other):
        return True
    at = torch.tensor([one, other], device=logits.device)
    seed, place = (torch.tensor([n], device=logits.device) for n in (how.seed, position))
    score = (exact[at] - exact.max()) / how.temperature + gumbel(bits(keys(seed, place), at))
    kept = bool((weight[at] > 0).all())
    return kept and abs(float(score[0] - score[1])) < SCORE
