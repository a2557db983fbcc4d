"""Mixture-of-experts kernels in torch, with static shapes, so that they can be captured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gatewayd_engine.kernels.activation import activation
from gatewayd_engine.kernels.experts.base import (
    ClampedAct,
    ExpertMatrices,
    RowCodes,
    Visits,
    block_lines,
    most_blocks,
    one_of,
)
from gatewayd_engine.kernels.quantized.block_scales import GROUP, Blocks, numbers
from gatewayd_engine.kernels.quantized.packing import unpack

if TYPE_CHECKING:
    from gatewayd_engine.kernels.experts.base import Form
    from gatewayd_engine.kernels.quantized.base import Activation, QuantizedRows


class TorchExperts:
    """Torch implementation of ``ExpertKernels``, with a copy of an expert's matrix per block."""

    def route(
        self, scores: torch.Tensor, top_k: int, *, renormalize: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``base``."""
        weights, chosen = torch.softmax(scores, -1, dtype=torch.float32).topk(top_k, -1)
        if renormalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, chosen.int()

    def route_visits(
        self, scores: torch.Tensor, top_k: int, *, renormalize: bool
    ) -> tuple[torch.Tensor, Visits]:
        """See ``base``."""
        weights, chosen = self.route(scores, top_k, renormalize=renormalize)
        return weights, self.sort_visits(chosen, scores.shape[1])

    def sort_visits(
        self, chosen: torch.Tensor, num_experts: int, lines: int | None = None
    ) -> Visits:
        """See ``base``."""
        count, top_k = chosen.numel(), chosen.shape[1]
        lines = lines or block_lines(count, num_experts)
        blocks = most_blocks(count, num_experts, lines)
        device = chosen.device
        visited, by_expert = chosen.flatten().long().sort(stable=True)
        each = torch.arange(num_experts, device=device)
        # Not bincount, which asks the device for the size of its output.
        counts = (visited.unsqueeze(1) == each).sum(0)
        needed = (counts + lines - 1) // lines
        ends, before = needed.cumsum(0), counts.cumsum(0) - counts
        # Visits are sorted, so the rank within an expert is the distance from its first.
        rank = torch.arange(count, device=device) - before[visited]
        places = (ends - needed)[visited] * lines + rank
        order = torch.full((blocks * lines,), count, dtype=torch.int32, device=device)
        order.index_copy_(0, places, by_expert.int())
        experts = torch.searchsorted(ends, torch.arange(blocks, device=device), right=True)
        experts = torch.where(experts < num_experts, experts, -1).int()
        return Visits(order, experts, lines, count, top_k)

    def expert_gates(
        self,
        x: torch.Tensor | QuantizedRows,
        weight: ExpertMatrices,
        visits: Visits,
        act: Activation | ClampedAct,
        out: torch.Tensor,
    ) -> None:
        """See ``base``."""
        made = _products(_floats(x), weight, visits, visits.top_k)
        gate, up = made.to(out.dtype).chunk(2, -1)
        if isinstance(act, ClampedAct):
            gate = gate.float().clamp(max=act.limit)
            up = up.float().clamp(-act.limit, act.limit)
            out.copy_((up + 1) * gate * torch.sigmoid(act.sharpness * gate))
        else:
            out.copy_(activation(act)(gate).mul_(up))

    def expert_answers(
        self,
        x: torch.Tensor | QuantizedRows,
        weight: ExpertMatrices,
        visits: Visits,
        weights: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """See ``base``."""
        out.copy_(_products(_floats(x), weight, visits, 1) * weights.view(-1, 1))

    def sum_visits(self, answers: torch.Tensor, top_k: int) -> torch.Tensor:
        """See ``base``."""
        apart = torch.unflatten(answers.float(), 0, (-1, top_k))
        total = torch.zeros_like(apart[:, 0])
        # One after another, as in the kernel: ``sum`` may add in another order.
        for place in range(top_k):
            total.add_(apart[:, place])
        return total.to(answers.dtype)


def _floats(x: torch.Tensor | QuantizedRows) -> torch.Tensor:
    """Convert or dequantize ``x`` to float32."""
    if isinstance(x, torch.Tensor):
        return x.float()
    n, groups = x.scales.shape
    spread = x.scales if groups == 1 else x.scales.repeat_interleave(GROUP, 1)
    return x.codes[:n].float() * spread


def _products(x: torch.Tensor, weight: ExpertMatrices, visits: Visits, per: int) -> torch.Tensor:
    """Multiply each visit's activations with its expert's matrix, float32 ``[visits, rows]``.

    Args:
        x: activations, float32 ``[n, columns]``.
        weight: matrices of the experts.
        visits: routing tables.
        per: visits per row of ``x``.
    """
    all_ = torch.stack([_dense(one_of(weight.all, number)) for number in range(weight.experts)])
    # Padding lines get zeros, and their outputs go to an extra row after the last visit's.
    padded = torch.cat((x, x.new_zeros(1, x.shape[1])))
    order = visits.order.long()
    line = torch.where(order < visits.num_visits, order // per, len(x))
    # The order of empty blocks is undefined.
    # The output size is given, so that it need not be read from the device.
    is_block = (visits.experts >= 0).repeat_interleave(visits.lines, output_size=len(order))
    line = torch.where(is_block, line, len(x))
    given = torch.unflatten(padded[line], 0, (-1, visits.lines))
    expert = visits.experts.long().clamp(0)
    made = torch.bmm(given, all_[expert].mT)
    if weight.bias is not None:
        made += weight.bias[expert].unsqueeze(1).float()
    made = made.flatten(0, 1)
    out = x.new_zeros(visits.num_visits + 1, weight.rows)
    # Padding lines already have ``num_visits`` as their visit, the extra row.
    out.index_copy_(0, torch.where(is_block, order, visits.num_visits), made)
    return out[: visits.num_visits]


def _dense(form: Form) -> torch.Tensor:
    """Dequantize a matrix to float32 ``[rows, columns]``."""
    if isinstance(form, torch.Tensor):
        return form.float()
    if isinstance(form, RowCodes):
        return form.codes.float() * form.scales.unsqueeze(1)
    return numbers(form) if isinstance(form, Blocks) else unpack(form).t()
