"""Mixture of experts on a device: routing tables, stacked matrices, and what kernels do with them.

A *visit* is one token at one of its experts: of ``n`` tokens there are ``n * top_k``, numbered
token by token. Visits are sorted by expert, those of each expert are padded to whole blocks of
lines, and a program multiplies one block with some rows of its expert's matrix. How many blocks
there are is known to the device alone; the grid follows from an upper bound that shapes give, and
programs of empty blocks end at once. Sources: MegaBlocks (Gale et al., arXiv 2211.15841, section 5)
for blocks in the place of dropped tokens; vLLM's and SGLang's fused experts for aligned blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import torch

from gatewayd_engine.kernels.quantized.block_scales import Blocks
from gatewayd_engine.kernels.quantized.packing import PackedWeight

if TYPE_CHECKING:
    from gatewayd_engine.kernels.quantized.base import Activation, Rounded

LINES = (16, 32, 64, 128)
"""Lines that a block may have: the least that a matrix unit takes, to the most that pay."""


class RowCodes(NamedTuple):
    """A matrix ``[rows, columns]``, ``code * scale``, that is multiplied with codes of its type.

    Attributes:
        codes: e4m3 or int8, shape ``[rows, columns]``; dense.
        scales: of each row, float32, shape ``[rows]``.
    """

    codes: torch.Tensor
    scales: torch.Tensor


Form = torch.Tensor | RowCodes | Blocks | PackedWeight
"""How a matrix is kept: floats ``[rows, columns]``, or low-bit codes."""


class ExpertMatrices(NamedTuple):
    """One matrix of each expert of a layer.

    Attributes:
        all: the form of one matrix, but each of its tensors has one dimension more, the first:
            that of the experts. Dense.
        one: views of the first expert's, for what is common to all of them.
        experts: how many there are.
        rows: numbers of an output.
        columns: numbers of an input.
    """

    all: Form
    one: Form
    experts: int
    rows: int
    columns: int

    @property
    def device(self) -> torch.device:
        """Where they are."""
        form = self.all
        return (form if isinstance(form, torch.Tensor) else form.scales).device


class Visits(NamedTuple):
    """Which visits are computed by which block.

    Attributes:
        order: numbers of visits by expert, int32, shape ``[blocks * lines]``; ``num_visits`` where
            an expert's last block has lines to spare. Empty blocks may hold anything.
        experts: of each block, int32, shape ``[blocks]``; -1 for a block that is empty.
        lines: of a block, one of ``LINES``.
        num_visits: in all.
        top_k: visits of a token.
    """

    order: torch.Tensor
    experts: torch.Tensor
    lines: int
    num_visits: int
    top_k: int


def tensors_of(form: Form) -> dict[str, torch.Tensor]:
    """The tensors of a form by their names; of floats that is empty."""
    if isinstance(form, torch.Tensor):
        return {"": form}
    named = zip(form._fields, form, strict=True)
    return {name: each for name, each in named if isinstance(each, torch.Tensor)}


def with_tensors(form: Form, tensors: dict[str, torch.Tensor]) -> Form:
    """The same form of other tensors."""
    if isinstance(form, torch.Tensor):
        return tensors[""]
    changed: Form = cast("Any", form)._replace(**tensors)
    return changed


def one_of(form: Form, number: int) -> Form:
    """Views of one expert's part of the form of all."""
    return with_tensors(form, {name: all_[number] for name, all_ in tensors_of(form).items()})


def block_lines(count: int, num_experts: int) -> int:
    """Lines of a block for so many visits: about those that an expert has on average."""
    return next((lines for lines in LINES if count <= lines * num_experts), LINES[-1])


def most_blocks(count: int, num_experts: int, lines: int) -> int:
    """Blocks that so many visits may need, however they are spread over the experts."""
    visited = min(count, num_experts)
    # At worst each of them has one line in its last block.
    return visited + (count - visited) // lines


class ExpertKernels(Protocol):
    """Kernels of mixtures of experts; see ``Kernels``, of which they are a part.

    Each row of an answer follows from its own token alone: neither which others visit the same
    expert nor where in a block it lies changes a bit, as nothing is added atomically.
    """

    def route(
        self, scores: torch.Tensor, top_k: int, *, renormalise: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose each token's experts: softmax over the scores, and the largest of it.

        Args:
            scores: shape ``[n, num_experts]``.
            top_k: experts that a token visits, at most ``num_experts``.
            renormalise: scale the weights of the chosen to sum to one.

        Returns:
            Weights, float32 ``[n, top_k]``, in descending order; not numbers where a score is
            none. And the experts, int32 ``[n, top_k]``: always valid, no expert twice.
        """

    def route_visits(
        self, scores: torch.Tensor, top_k: int, *, renormalise: bool
    ) -> tuple[torch.Tensor, Visits]:
        """``route``, then ``sort_visits``; the weights, and the tables."""

    def sort_visits(
        self, chosen: torch.Tensor, num_experts: int, lines: int | None = None
    ) -> Visits:
        """Make the routing tables of chosen experts.

        Args:
            chosen: int32, each below ``num_experts``, shape ``[n, top_k]``; dense.
            num_experts: how many there are.
            lines: of a block; None for what ``block_lines`` says.
        """

    def expert_gates(
        self,
        x: torch.Tensor | Rounded,
        weight: ExpertMatrices,
        visits: Visits,
        act: Activation,
        out: torch.Tensor,
    ) -> None:
        """The first product of each visited expert, and its gate.

        ``gate`` and ``up``, the halves of what the matrix makes of a token, are rounded to the type
        of the answer, which is ``act(gate)``, rounded too, times ``up``.

        Args:
            x: tokens, shape ``[n, columns]``. Rounded if the matrices are ``RowCodes``, in groups
                if they are ``Blocks``.
            weight: gates above what they gate.
            visits: of the tokens.
            act: the function of the gates.
            out: all of it is written, shape ``[n * top_k, rows / 2]``; dense.
        """

    def expert_answers(
        self,
        x: torch.Tensor | Rounded,
        weight: ExpertMatrices,
        visits: Visits,
        weights: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """The second product of each visited expert, times the router's weight; rounded once.

        Args:
            x: of each visit, shape ``[n * top_k, columns]``; see ``expert_gates``.
            weight: the matrices.
            visits: of the tokens.
            weights: of ``route``; dense.
            out: all of it is written, shape ``[n * top_k, rows]``; dense.
        """

    def sum_visits(self, answers: torch.Tensor, top_k: int) -> torch.Tensor:
        """Add up the answers of each token's experts, from its first to its last, in float32.

        Args:
            answers: shape ``[n * top_k, size]``.
            top_k: experts that a token visits.

        Returns:
            A new tensor, shape ``[n, size]``, of the same type.
        """
