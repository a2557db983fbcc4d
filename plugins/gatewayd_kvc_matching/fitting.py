"""Fits few keys, a bias for each, and values to what many keys and values answer.

For queries that stand for those to come, the few are to have the same mass (the sum of
``exp(score)``) and to give the same answer. A context splits by mass: who matches both over a
part matches whatever stands beside it. Source: attention matching, arXiv 2602.16284.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from gatewayd_kvc_matching.masses import bounded_least_squares

LEAST_WEIGHT = 1e-6
"""What a key weighs that is not wanted; a bias must be finite."""


class Few(NamedTuple):
    """What stands for many keys and values of one head.

    Attributes:
        places: which keys were kept, ascending, int64, shape ``[t]``.
        bias: to be added to their scores, shape ``[t]``.
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
) -> Few:
    """Choose ``kept`` keys of one head, and fit their biases and values.

    Args:
        queries: times the scale of scores, shape ``[n, head_dim]``.
        keys: shape ``[T, head_dim]``.
        values: shape ``[T, head_dim]``.
        kept: 1 to T.
        greedy: whether keys are chosen by what of the mass is missing, not by their share in it.
        fits_mass: whether biases are fitted; else they are 0.
        fits_values: whether values are fitted; else they are those of the keys.
        ridge: how strongly what is fitted is drawn to what it was, a part of the mean square.

    Returns:
        The same for the same input, float64.
    """
    q, k, v = (x.double() for x in (queries, keys, values))
    scores = q @ k.T
    shares = torch.softmax(scores, -1)
    if kept == len(k):
        places = torch.arange(kept)
    elif greedy:
        places = _greedily(shares, kept, ridge)
    else:
        places = shares.square().sum(0).topk(kept).indices.sort().values
    bias = fit_bias(shares[:, places], ridge) if fits_mass else q.new_zeros(kept)
    few = v[places]
    if fits_values:
        weights = torch.softmax(scores[:, places] + bias, -1)
        few = few + _ridge(weights, shares @ v - weights @ few, ridge)
    return Few(places, bias, few)


def fit_bias(shares: torch.Tensor, ridge: float) -> torch.Tensor:
    """Logarithms of the weights with which keys have all of the mass, for each query.

    Args:
        shares: of all the mass, shape ``[n, t]``.
        ridge: see ``fit``.
    """
    gram, damping = _damped(shares, ridge)
    # Whatever no query tells anything of weighs what it did.
    weights = bounded_least_squares(gram, shares.sum(0) + damping, LEAST_WEIGHT)
    return weights.log()


def _ridge(weights: torch.Tensor, missing: torch.Tensor, ridge: float) -> torch.Tensor:
    """What to add to values so that ``weights`` of them give what is missing, ``[t, dim]``."""
    gram, _ = _damped(weights, ridge)
    return torch.cholesky_solve(weights.T @ missing, torch.linalg.cholesky(gram))


def _damped(rows: torch.Tensor, ridge: float) -> tuple[torch.Tensor, float]:
    """The Gram matrix with ``ridge`` of its mean diagonal added there, and how much that is."""
    gram = rows.T @ rows
    damping = max(ridge * float(gram.diagonal().mean()), 1e-14)
    gram.diagonal().add_(damping)
    return gram, damping


def _greedily(shares: torch.Tensor, kept: int, ridge: float) -> torch.Tensor:
    """Keys by orthogonal matching pursuit: those that explain best what of the mass is missing."""
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
