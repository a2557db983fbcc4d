"""Mixture of experts: each token visits a few of a layer's feed-forward parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gatewayd_engine.model.layers import FeedForward, LinearOp


class Router:
    """Says which experts a token visits, and what their answers count."""

    __slots__ = ("_renormalise", "_scores", "_top_k")

    def __init__(self, scores: LinearOp, top_k: int, *, renormalise: bool) -> None:
        self._scores = scores
        self._top_k = top_k
        self._renormalise = renormalise

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights, float32, and numbers of experts, both ``[n, top_k]``, for ``[n, hidden]``."""
        scores = torch.softmax(self._scores(x), -1, dtype=torch.float32)
        weights, chosen = scores.topk(self._top_k, -1)
        if self._renormalise:
            weights /= weights.sum(-1, keepdim=True)
        return weights, chosen


class MixtureOfExperts:
    """A router and its experts; tokens are grouped by expert, so each runs once per step."""

    __slots__ = ("_experts", "_router")
    entry = None

    def __init__(self, router: Router, experts: Sequence[FeedForward]) -> None:
        self._router = router
        self._experts = experts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[n, hidden]`` to a new ``[n, hidden]``."""
        weights, chosen = self._router(x)
        visits = chosen.flatten()
        order = visits.argsort(stable=True)
        grouped = x[order // chosen.shape[1]]  # [n * top_k, hidden], by expert
        answers = torch.empty_like(grouped)
        start = 0
        counts = visits.bincount(minlength=len(self._experts)).tolist()
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                answers[start : start + count] = expert(grouped[start : start + count])
                start += count

        # Back in token order and summed there: the sum's order does not depend on the batch.
        by_token = torch.empty_like(answers)
        by_token[order] = answers
        by_token = by_token.view(*chosen.shape, -1)
        return by_token.mul_(weights.unsqueeze(-1).to(x.dtype)).sum(1)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        onto.add_(self(x))
        return None
