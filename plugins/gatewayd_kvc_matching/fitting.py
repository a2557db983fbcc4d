"""Fits few keys, a bias for each, and values to the attention over many keys and values.

For sample queries, the few are to have the same mass (the sum of ``exp(score)``) and to give the
same output. Attention over a context is a mass-weighted combination of its parts: matching both
over a part is sufficient whatever else is in the context. Source: attention matching, arXiv
2602.16284.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from gatewayd_kvc_matching.bounded_least_squares import bounded_least_squares

LEAST_WEIGHT = 1e-6
"""Weight of an unused key; a bias must be finite."""


class FittedPositions(NamedTuple):
    """Replacement of many keys and values of one head.

    Attributes:
        places: indices of the keys that remain, ascending, int64, shape ``[t]``.
        bias: added to their scores, shape ``[t]``.
        values: shape ``[t, head_dim]``.
    """

    places: torch.Tensor
    bias: torch.Tensor
    values: torch.Tensor


def fit(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    kept: int,
    *,
    greedy: bool = False,
    fits_mass: bool = True,
    fits_values: bool = True,
    ridge: float = 1e-4,
) -> FittedPositions:
    """Choose ``kept`` keys of one head, and fit their biases and values.

    Args:
        queries: multiplied by the scale of scores, shape ``[n, head_dim]``.
        keys: shape ``[T, head_dim]``.
        values: shape ``[T, head_dim]``.
        kept: number of keys, from 1 to T.
        greedy: whether keys are chosen by the missing mass instead of their share of attention.
        fits_mass: whether biases are fitted; otherwise they are 0.
        fits_values: whether values are fitted; otherwise they are those of the keys.
        ridge: regularization towards the original values, relative to the mean square.

    Returns:
        Deterministic for the same input, float64.
    """
    q, k, v = (x.double() for x in (queries, keys, values))
    scores = q @ k.T
    # Masses relative to the whole mass of each query: the target is then 1, and nothing overflows.
    shares = torch.softmax(scores, -1)
    if kept == len(k):
        places = torch.arange(kept)
    elif greedy:
        places = _greedily(shares, kept, ridge)
    else:
        places = shares.square().sum(0).topk(kept).indices.sort().values
    bias = fit_bias(shares[:, places], ridge) if fits_mass else q.new_zeros(kept)
    fitted = v[places]
    if fits_values:
        weights = torch.softmax(scores[:, places] + bias, -1)
        # The correction is regularized, not the value: a strong ridge leaves the original values.
        fitted = fitted + _ridge(weights, shares @ v - weights @ fitted, ridge)
    return FittedPositions(places, bias, fitted)


def fit_bias(shares: torch.Tensor, ridge: float) -> torch.Tensor:
    """Return the logarithms of weights with which keys have the whole mass, for each query.

    Args:
        shares: of the whole mass, shape ``[n, t]``.
        ridge: see ``fit``.
    """
    gram, damping = _damped(shares, ridge)
    # Keys that no query attends to have their original weight.
    weights = bounded_least_squares(gram, shares.sum(0) + damping, LEAST_WEIGHT)
    return weights.log()


def _ridge(weights: torch.Tensor, missing: torch.Tensor, ridge: float) -> torch.Tensor:
    """Return the change of values for which ``weights`` yield what is missing, ``[t, dim]``."""
    gram, _ = _damped(weights, ridge)
    return torch.cholesky_solve(weights.T @ missing, torch.linalg.cholesky(gram))


def _damped(rows: torch.Tensor, ridge: float) -> tuple[torch.Tensor, float]:
    """Return the Gram matrix with ``ridge`` of its mean diagonal added there, and that amount."""
    gram = rows.T @ rows
    damping = max(ridge * float(gram.diagonal().mean()), 1e-14)
    gram.diagonal().add_(damping)
    return gram, damping


def _greedily(shares: torch.Tensor, kept: int, ridge: float) -> torch.Tensor:
    """Choose keys by orthogonal matching pursuit: those that best explain the missing mass."""
    # Each round solves a system, so several keys are added at a time, in some 24 rounds.
    each = max(4, kept // 24)
    norms = shares.square().sum(0).sqrt().clamp_min(1e-30)
    is_left = torch.ones(shares.shape[1], dtype=torch.bool)
    missing = shares.new_ones(len(shares))
    places = torch.empty(0, dtype=torch.int64)
    while len(places) < kept:
        gain = torch.where(is_left, (missing @ shares) / norms, -torch.inf)
        more = gain.topk(min(each, kept - len(places))).indices
        is_left[more] = False
        places = torch.cat((places, more))
        chosen = shares[:, places]
        missing = 1 - chosen @ fit_bias(chosen, ridge).exp()
    return places.sort().values
