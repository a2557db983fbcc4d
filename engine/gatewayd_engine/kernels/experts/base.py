"""Protocol and data of the mixture-of-experts kernels: routing tables and stacked matrices.

A *visit* is one (token, expert) pair: ``n`` tokens make ``n * top_k`` visits, numbered token by
token. Visits are sorted by expert, those of each expert are padded to whole blocks of *lines*, one
visit each, and a program multiplies one block with some rows of its expert's matrix. The number of
blocks is known on the device only; the grid follows from an upper bound that shapes give, and
programs of empty blocks exit at once. Sources: MegaBlocks (Gale et al., arXiv 2211.15841,
section 5) for blocks instead of dropped tokens; vLLM's and SGLang's fused experts for aligned
blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch

from gatewayd_engine.kernels.quantized.block_scales import Blocks
from gatewayd_engine.kernels.quantized.packing import PackedWeight

if TYPE_CHECKING:
    from gatewayd_engine.kernels.quantized.base import Activation, QuantizedRows

LINES = (16, 32, 64, 128)
"""Possible lines of a block, from the smallest tensor-core tile to the largest that pays off."""


class RowCodes(NamedTuple):
    """Matrix ``[rows, columns]`` of ``code * scale``, for activations quantized to the same dtype.

    Attributes:
        codes: e4m3 or int8, shape ``[rows, columns]``; dense.
        scales: scale of each row, float32, shape ``[rows]``.
    """

    codes: torch.Tensor
    scales: torch.Tensor


class ClampedAct(NamedTuple):
    """Numbers of the gated activation ``(up + 1) * gate * sigmoid(sharpness * gate)``.

    Computed in float32 from the rounded halves, and rounded once. Source: gpt-oss.

    Attributes:
        limit: largest gate, and largest magnitude of ``up``; values beyond it are clamped.
        sharpness: factor of the gate within the sigmoid.
    """

    limit: float
    sharpness: float


Form = torch.Tensor | RowCodes | Blocks | PackedWeight
"""Representation of a matrix: floats ``[rows, columns]``, or one of the quantized formats."""


class ExpertMatrices(NamedTuple):
    """Stacked matrices of a layer's experts.

    Attributes:
        all: matrices of all experts: the form of one, with a leading expert dimension on each
            tensor. Dense.
        one: views of the first expert's matrix, for properties common to all.
        experts: number of experts.
        rows: output features.
        columns: input features.
        bias: biases of all experts, shape ``[experts, rows]``; dense. None for none.
    """

    all: Form
    one: Form
    experts: int
    rows: int
    columns: int
    bias: torch.Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Device of the matrices."""
        form = self.all
        return (form if isinstance(form, torch.Tensor) else form.scales).device


class Visits(NamedTuple):
    """Routing tables: assignment of visits to blocks.

    Attributes:
        order: visit of each line, sorted by expert, int32, shape ``[blocks * lines]``;
            ``num_visits`` for padding lines of an expert's last block. Undefined in empty blocks.
        experts: expert of each block, int32, shape ``[blocks]``; -1 for an empty block.
        lines: lines of a block, one of ``LINES``.
        num_visits: number of visits.
        top_k: visits per token.
    """

    order: torch.Tensor
    experts: torch.Tensor
    lines: int
    num_visits: int
    top_k: int


def tensors_of(form: Form) -> dict[str, torch.Tensor]:
    """Return the tensors of a form by field name; a float matrix has the empty name."""
    if isinstance(form, torch.Tensor):
        return {"": form}
    named = zip(form._fields, form, strict=True)
    return {name: each for name, each in named if isinstance(each, torch.Tensor)}


def with_tensors(form: Form, tensors: dict[str, torch.Tensor]) -> Form:
    """Return a copy of the form with other tensors."""
    if isinstance(form, torch.Tensor):
        return tensors[""]
    changed: Form = cast("Any", form)._replace(**tensors)
    return changed


def one_of(form: Form, number: int) -> Form:
    """Return views of one expert's matrix in the stacked form."""
    return with_tensors(form, {name: all_[number] for name, all_ in tensors_of(form).items()})


def block_lines(count: int, num_experts: int) -> int:
    """Return the lines of a block for ``count`` visits: about the average visits of an expert."""
    # Larger blocks would be mostly padding; smaller ones would read each matrix more often.
    return next((lines for lines in LINES if count <= lines * num_experts), LINES[-1])


def most_blocks(count: int, num_experts: int, lines: int) -> int:
    """Return the most blocks that ``count`` visits need, for any distribution over experts."""
    visited = min(count, num_experts)
    # In the worst case each expert's last block has one line.
    return visited + (count - visited) // lines


class ExpertKernels(Protocol):
    """Kernels of mixture-of-experts layers; a part of ``Kernels``, whose conventions apply.

    Batch-invariant: each row of an output depends on its own token alone, bit for bit, whatever
    other tokens visit the same expert and wherever in a block it is, as nothing is added
    atomically.
    """

    def route(
        self, scores: torch.Tensor, top_k: int, *, renormalize: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Select the top-k experts of each token by softmax over the router's scores.

        Args:
            scores: router logits, shape ``[n, num_experts]``.
            top_k: experts per token, at most ``num_experts``.
            renormalize: whether to scale the selected weights to sum to one.

        Returns:
            Weights, float32 ``[n, top_k]``, in descending order; NaN where a score is. And the
            experts, int32 ``[n, top_k]``: always valid and distinct.
        """

    def route_visits(
        self, scores: torch.Tensor, top_k: int, *, renormalize: bool
    ) -> tuple[torch.Tensor, Visits]:
        """Fuse ``route`` and ``sort_visits``; return the weights and the tables."""

    def sort_visits(
        self, chosen: torch.Tensor, num_experts: int, lines: int | None = None
    ) -> Visits:
        """Build the routing tables of selected experts.

        Args:
            chosen: int32, each below ``num_experts``, shape ``[n, top_k]``; dense.
            num_experts: number of experts.
            lines: lines of a block; None for those of ``block_lines``.
        """

    def expert_gates(
        self,
        x: torch.Tensor | QuantizedRows,
        weight: ExpertMatrices,
        visits: Visits,
        act: Activation | ClampedAct,
        out: torch.Tensor,
    ) -> None:
        """Compute the gate and up projections of each visit and the gated activation.

        ``gate`` and ``up``, the two halves of the product, are rounded to the dtype of the output,
        which is ``act(gate)``, rounded too, times ``up``, unless the activation is clamped. Biases
        are added before that.

        Args:
            x: tokens, shape ``[n, columns]``. Quantized per row if the matrices are ``RowCodes``,
                per group if they are ``Blocks``.
            weight: rows of the gate projection, then those of the up projection.
            visits: routing tables of the tokens.
            act: activation function of the gates, or both halves' clamped one.
            out: fully overwritten, shape ``[n * top_k, rows / 2]``; dense.
        """

    def expert_answers(
        self,
        x: torch.Tensor | QuantizedRows,
        weight: ExpertMatrices,
        visits: Visits,
        weights: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Compute the down projection of each visit times the router's weight, rounded once.

        Biases are added before the router's weight is applied.

        Args:
            x: activations of each visit, shape ``[n * top_k, columns]``; see ``expert_gates``.
            weight: matrices of the down projection.
            visits: routing tables of the tokens.
            weights: weights of ``route``; dense.
            out: fully overwritten, shape ``[n * top_k, rows]``; dense.
        """

    def sum_visits(self, answers: torch.Tensor, top_k: int) -> torch.Tensor:
        """Sum the outputs of each token's experts, in the order of ``route``, in float32.

        Args:
            answers: outputs of ``expert_answers``, shape ``[n * top_k, size]``.
            top_k: experts per token.

        Returns:
            A new tensor, shape ``[n, size]``, of the same dtype.
        """
