"""Mixture of experts: each token is routed to the top-k of a layer's feed-forward parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gatewayd_engine.kernels.experts.base import LINES
from gatewayd_engine.model.layers import FeedForward
from gatewayd_engine.model.router import Router, SharedGate

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels
    from gatewayd_engine.kernels.experts.base import ClampedAct, Visits
    from gatewayd_engine.kernels.quantized.base import Activation
    from gatewayd_engine.model.decoder import Mlp
    from gatewayd_engine.model.linears.expert_stacks import Stack

_COUNTS = (1, 16, 17, 64, 65)
"""Numbers of tokens that make the kernels compile different variants."""


class MixtureOfExperts:
    """Mixture of experts that runs each expert once per step, on the tokens routed to it.

    The host reads the token counts per expert, which synchronises with the device: for CPUs, and
    for formats that ``GroupedExperts`` cannot multiply.
    """

    __slots__ = ("_experts", "_router")
    entry = None

    def __init__(self, router: Router, experts: Sequence[FeedForward]) -> None:
        self._router = router
        self._experts = experts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[n, hidden]`` to a new ``[n, hidden]``."""
        weights, chosen = self._router(x)
        visits = chosen.flatten()
        # Tokens sorted by expert, so that each expert's inputs are one slice.
        order = visits.argsort(stable=True)
        grouped = x[order // chosen.shape[1]]  # [n * top_k, hidden], by expert
        weighs_inputs = self._router.routing.weighs_inputs
        if weighs_inputs:
            grouped.mul_(weights.flatten()[order].unsqueeze(1).to(x.dtype))
        answers = torch.empty_like(grouped)
        start = 0
        counts = visits.bincount(minlength=len(self._experts)).tolist()
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                answers[start : start + count] = expert(grouped[start : start + count])
                start += count

        # Restore the token order before summing, so that the order of the sum is batch-invariant.
        by_token = torch.empty_like(answers)
        by_token[order] = answers
        by_token = by_token.view(*chosen.shape, -1)
        if not weighs_inputs:
            by_token.mul_(weights.unsqueeze(-1).to(x.dtype))
        return by_token.sum(1)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        onto.add_(self(x))
        return None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GroupedExperts:
    """Mixture of experts as grouped GPU matrix products, independent of the routing.

    Launches depend on the number of tokens alone, so they can be captured in a CUDA graph.

    Args:
        router: of the layer.
        gate_up: fused gate and up projections of all experts, gate rows first.
        down: down projections of all experts.
        act: activation of the gates.
        kernels: of the device.
    """

    _router: Router
    _gate_up: Stack
    _down: Stack
    _act: Activation | ClampedAct
    _kernels: Kernels
    entry = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[n, hidden]`` to a new ``[n, hidden]``."""
        return self._run_experts(x, *self._route(x))

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``; the addition is deferred to the next norm, which reads ``onto``."""
        return self(x)

    @torch.no_grad()
    def compile(self, dtype: torch.dtype) -> None:
        """Compile all kernels that a step with any number of tokens may launch.

        Args:
            dtype: of activations.
        """
        kernels, router, matrices = self._kernels, self._router, self._gate_up.matrices
        x = torch.zeros((max(_COUNTS), matrices.columns), dtype=dtype, device=matrices.device)
        # Variants of the routing kernels, then of the experts' for each number of lines in a block.
        for count in _COUNTS:
            self(x[:count])
        weights, chosen = router(x[:1])
        for lines in LINES:
            visits = kernels.sort_visits(chosen.int(), matrices.experts, lines)
            self._run_experts(x[:1], weights, visits)

    def _route(self, x: torch.Tensor) -> tuple[torch.Tensor, Visits]:
        """Return the weights of each token's experts, and the routing tables."""
        router, kernels = self._router, self._kernels
        routing = router.routing
        if routing.is_softmax:
            return kernels.route_visits(
                router.logits(x), routing.top_k, renormalize=routing.renormalize
            )
        weights, chosen = router(x)
        return weights, kernels.sort_visits(chosen.int(), self._gate_up.matrices.experts)

    def _run_experts(self, x: torch.Tensor, weights: torch.Tensor, visits: Visits) -> torch.Tensor:
        """Run the experts on the tokens routed to them and sum their weighted outputs."""
        kernels, first, second = self._kernels, self._gate_up.matrices, self._down.matrices
        inner = x.new_empty(visits.num_visits, second.columns)
        given = visits
        if self._router.routing.weighs_inputs:
            # Each visit has an input of its own, and outputs are added as they are.
            x = (x.unsqueeze(1) * weights.unsqueeze(-1).to(x.dtype)).flatten(0, 1)
            given, weights = visits._replace(top_k=1), torch.ones_like(weights)
        kernels.expert_gates(self._gate_up.prepare_input(x), first, given, self._act, inner)
        answers = x.new_empty(visits.num_visits, second.rows)
        kernels.expert_answers(self._down.prepare_input(inner), second, visits, weights, answers)
        return kernels.sum_visits(answers, visits.top_k)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WithSharedExpert:
    """Experts of which all tokens visit one, in addition to those that their router chooses.

    Args:
        routed: the other experts.
        shared: the expert that all tokens visit.
        gate: weight of the output of ``shared``; None for one.
    """

    _routed: Mlp
    _shared: FeedForward
    _gate: SharedGate | None
    entry = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[n, hidden]`` to a new ``[n, hidden]``."""
        total = self._routed(x)
        if self._gate is None:
            rest = self._shared.add_to(total, x)
            return total if rest is None else total.add_(rest)
        # Not fused: a fused multiply-add has other bits in the tail of a vector register.
        return total.add_(self._shared(x).mul_(self._gate(x)))

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``; the addition is deferred to the next norm."""
        return self(x)
