"""Routers of experts: scores, the choice of each token's experts, and their weights.

Sigmoids are computed in float64: torch computes the tail of a vector register by other
instructions, whose last bit differs, and where that tail is depends on the batch.
"""

from __future__ import annotations

import torch

from gatewayd_engine.model.config.moe import Routing
from gatewayd_engine.model.layers import LinearOp

_LEAST_SUM = 1e-20
"""Added to the sum by which weights are divided: sigmoids may all be zero."""


class Router:
    """Top-k router over a layer's experts.

    Launches depend on the number of tokens alone, so they can be captured in a CUDA graph. Of equal
    scores a row's choice is the same in any batch.

    Args:
        linear: computes the router logits.
        routing: scores and choice.
        correction: float32, shape ``[experts]``; None unless ``routing.has_correction``.

    Attributes:
        routing: as given.
    """

    __slots__ = ("_correction", "_linear", "routing")

    def __init__(
        self, linear: LinearOp, routing: Routing, correction: torch.Tensor | None = None
    ) -> None:
        self._linear = linear
        self._correction = correction
        self.routing = routing

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the router logits of tokens ``[n, hidden]``; shape ``[n, experts]``."""
        return self._linear(x.float() if self.routing.in_float32 else x)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Route tokens ``[n, hidden]``.

        Returns:
            Weights, float32, and expert indices, int64, both ``[n, top_k]``.
        """
        routing, logits = self.routing, self.logits(x)
        if routing.scoring == "softmax":
            scores = torch.softmax(logits, -1, dtype=torch.float32)
        else:
            scores = torch.sigmoid(logits.double()).float()
        ranks = scores
        if self._correction is not None:
            ranks = scores + self._correction
        elif routing.scoring == "sigmoid":
            ranks = logits  # sigmoids of large ones are equal
        if routing.groups > routing.top_groups:
            ranks = self._in_top_groups(ranks)
        weights, chosen = ranks.topk(routing.top_k, -1)
        if ranks is not scores:
            weights = scores.gather(-1, chosen)
        if routing.renormalize:
            weights = weights / weights.sum(-1, keepdim=True).add_(_LEAST_SUM)
        return weights if routing.scale == 1.0 else weights * routing.scale, chosen

    def _in_top_groups(self, ranks: torch.Tensor) -> torch.Tensor:
        """Return the ranks of experts, with minus infinity for those outside the top groups."""
        routing = self.routing
        by_group = torch.unflatten(ranks, -1, (routing.groups, -1))
        best = by_group.topk(routing.ranked_by, -1).values.sum(-1)
        top = best.topk(routing.top_groups, -1).indices
        is_outside = torch.ones_like(best, dtype=torch.bool).scatter_(-1, top, False)
        return by_group.masked_fill(is_outside.unsqueeze(-1), float("-inf")).flatten(-2)


class SharedGate:
    """Weight of the output of a layer's shared expert.

    Args:
        linear: computes its logit.
    """

    __slots__ = ("_linear",)

    def __init__(self, linear: LinearOp) -> None:
        self._linear = linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the weights of tokens ``[n, hidden]``; shape ``[n, 1]``."""
        return torch.sigmoid(self._linear(x).double()).to(x.dtype)
