"""Sampling on a CPU with temperature, top-k, top-p and min-p."""

from __future__ import annotations

import torch


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
    weights, ids = _weights(logits, temperature, top_k, top_p, min_p)
    chosen = invert(weights, uniform)
    return chosen if ids is None else ids.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)


def distribution(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    min_p: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the distribution that ``sample`` samples from, float64, shape ``[n, vocab]``."""
    weights, ids = _weights(logits, temperature, top_k, top_p, min_p)
    weights = weights / weights.sum(-1, keepdim=True)
    return weights if ids is None else torch.zeros_like(weights).scatter_(-1, ids, weights)


def _weights(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return weights of tokens, float64, and their ids; None for all tokens in order."""
    # The maximum is subtracted before the division, so that a tiny temperature cannot overflow.
    scaled = (logits - logits.amax(-1, keepdim=True)) / temperature.unsqueeze(-1)
    if top_k is None or top_p is None or min_p is None:
        # The error of a float32 sum grows with the vocabulary, and would shift rare tokens.
        return torch.softmax(scaled, -1, dtype=torch.float64), None
    ordered, ids = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[-1], device=logits.device)
    limit = torch.where(top_k > 0, top_k, ordered.shape[-1]).unsqueeze(-1)
    ordered = ordered.masked_fill(rank >= limit, -torch.inf)
    probs = torch.softmax(ordered, -1, dtype=torch.float64)
    # Probability before each token: the one that reaches top-p is kept.
    before = probs.cumsum(-1) - probs
    # The likeliest token is always kept.
    cut = (before >= top_p.double().unsqueeze(-1)) & (rank > 0)
    cut |= probs < min_p.double().unsqueeze(-1) * probs[:, :1]
    return probs.masked_fill(cut, 0.0), ids


def invert(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return the first index whose cumulative weight exceeds ``uniform`` times the total."""
    cumulative = weights.cumsum(-1)
    target = (uniform * cumulative[:, -1]).unsqueeze(-1)
    # On the right, so that a target of 0 skips leading tokens without weight.
    index = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    # Rounding may make the target equal the total: then the last entry with weight is chosen.
    last = (cumulative < cumulative[:, -1:]).sum(-1)
    return torch.minimum(index, last)
