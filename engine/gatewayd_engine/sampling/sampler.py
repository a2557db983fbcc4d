"""Sampling on a CPU with temperature, top-k, top-p and min-p."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

_LIKELIEST = 256
"""Tokens that are sorted first: filters seldom keep more, and sorting a vocabulary takes longer
than computing a step."""


class _Kept(NamedTuple):
    """Tokens of some rows in the order of their probabilities.

    Attributes:
        rows: indices, shape ``[m]``.
        weights: 0 for those that are filtered out, float64, shape ``[m, tokens]``.
        ids: shape ``[m, tokens]``.
    """

    rows: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    uniform: torch.Tensor,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    min_p: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sample one token per row by inverting the cumulative distribution.

    Temperature acts first, then top-k, then top-p on the tokens left by top-k, then min-p. Without
    filters (all None) nothing is sorted.

    Args:
        logits: float32, shape ``[n, vocab]``.
        temperature: above 0, shape ``[n]``.
        uniform: float64 in [0, 1), shape ``[n]``.
        top_k: keep the k likeliest tokens, 0 for all, int64, shape ``[n]``.
        top_p: keep the smallest set of likeliest tokens that reaches this probability, shape
            ``[n]``.
        min_p: keep tokens at least this likely relative to the likeliest, shape ``[n]``.

    Returns:
        Token ids, int64, shape ``[n]``.
    """
    scaled = _scaled(logits, temperature)
    if top_k is None or top_p is None or min_p is None:
        return invert(_softmax(scaled), uniform)
    tokens = torch.empty(len(logits), dtype=torch.int64)
    for kept in _filtered(scaled, top_k, top_p, min_p):
        chosen = invert(kept.weights, uniform[kept.rows])
        tokens[kept.rows] = kept.ids.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    return tokens


def distribution(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    min_p: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the distribution that ``sample`` samples from, float64, shape ``[n, vocab]``."""
    scaled = _scaled(logits, temperature)
    if top_k is None or top_p is None or min_p is None:
        return _softmax(scaled)
    found = torch.zeros(logits.shape, dtype=torch.float64)
    for rows, weights, ids in _filtered(scaled, top_k, top_p, min_p):
        share = weights / weights.sum(-1, keepdim=True)
        found[rows] = torch.zeros(len(rows), logits.shape[-1], dtype=torch.float64).scatter_(
            -1, ids, share
        )
    return found


def _scaled(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    # The maximum is subtracted before the division, so that a tiny temperature cannot overflow.
    return (logits - logits.amax(-1, keepdim=True)) / temperature.unsqueeze(-1)


def _softmax(scaled: torch.Tensor) -> torch.Tensor:
    # The error of a float32 sum grows with the vocabulary, and would shift rare tokens.
    return torch.softmax(scaled, -1, dtype=torch.float64)


def _filtered(
    scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> Iterator[_Kept]:
    """Filter rows: first those of whose tokens the likeliest suffice, then the others."""
    count, vocab = scaled.shape
    rest = torch.arange(count)
    if vocab > 2 * _LIKELIEST:
        # Sorted by id before, as equal ones keep their order.
        ids = scaled.topk(_LIKELIEST).indices.sort(-1).values
        ordered, order = scaled.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
        every = scaled.exp().sum(-1, dtype=torch.float64)
        weights = _cut(ordered, every, top_k, top_p, min_p)
        # Of equal tokens at the end some may be missing.
        is_whole = (weights.masked_fill(ordered > ordered[:, -1:], 0.0) == 0).all(-1)
        is_whole &= top_k <= _LIKELIEST
        rows = is_whole.nonzero().squeeze(-1)
        yield _Kept(rows, weights[rows], ids.gather(-1, order)[rows])
        rest = (~is_whole).nonzero().squeeze(-1)
    if len(rest):
        ordered, ids = scaled[rest].sort(dim=-1, descending=True, stable=True)
        every = ordered.exp().sum(-1, dtype=torch.float64)
        yield _Kept(rest, _cut(ordered, every, top_k[rest], top_p[rest], min_p[rest]), ids)


def _cut(
    ordered: torch.Tensor,
    every: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """Return the weights of tokens in order, 0 for those that are filtered out.

    Args:
        ordered: the likeliest tokens' logits, shape ``[m, tokens]``.
        every: sum of the weights of all tokens, shape ``[m]``.
        top_k: see ``sample``, shape ``[m]``.
        top_p: likewise.
        min_p: likewise.
    """
    weights = ordered.double().exp()
    rank = torch.arange(ordered.shape[-1])
    limit = torch.where(top_k > 0, top_k, torch.iinfo(torch.int64).max).unsqueeze(-1)
    weights = weights.masked_fill(rank >= limit, 0.0)
    total = torch.where(top_k > 0, weights.sum(-1), every).unsqueeze(-1)
    # Weight before each token: the one that reaches top-p is kept.
    before = weights.cumsum(-1) - weights
    share = torch.where(top_p < 1, top_p.double(), torch.inf).unsqueeze(-1)
    # The likeliest token is always kept.
    cut = (before >= share * total) & (rank > 0)
    cut |= weights < min_p.double().unsqueeze(-1) * weights[:, :1]
    return weights.masked_fill(cut, 0.0)


def invert(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return the first index whose cumulative weight exceeds ``uniform`` times the total."""
    cumulative = weights.cumsum(-1)
    target = (uniform * cumulative[:, -1]).unsqueeze(-1)
    # On the right, so that a target of 0 skips leading tokens without weight.
    index = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    # Rounding may make the target equal the total: then the last entry with weight is chosen.
    last = (cumulative < cumulative[:, -1:]).sum(-1)
    return torch.minimum(index, last)
