"""Block-scaled matrices of 8-bit floats in the layout that kernels read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import GroupedWeight

GROUP = 128
"""Columns of a block, and group size of quantized inputs: products summed before scaling."""
_TALL = 128
"""Rows of a block, as checkpoints have them."""


class Blocks(NamedTuple):
    """Block-scaled matrix ``[rows, columns]`` of ``code * scale``.

    Attributes:
        codes: e4m3, shape ``[rows, columns]``; dense.
        scales: float32, shape ``[groups, ceil(rows / tall)]``.
        tall: rows that share a scale: 128, or 1 where the boundary of concatenated matrices falls
            within a block.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    tall: int

    @property
    def rows(self) -> int:
        """Output features."""
        return self.codes.shape[0]

    @property
    def columns(self) -> int:
        """Input features."""
        return self.codes.shape[1]

    @property
    def pieces(self) -> int:
        """Number of column groups, each loaded together, over which a sum runs."""
        return self.scales.shape[0]

    @property
    def nbytes(self) -> int:
        """Memory of all tensors, in bytes."""
        return self.codes.nbytes + self.scales.nbytes


def blocks(weight: GroupedWeight) -> Blocks | None:
    """Convert a weight; return None for other block shapes or unquantized activations."""
    rows, columns = weight.codes.shape
    if (
        weight.activations != "e4m3"
        or weight.codes.dtype != torch.float8_e4m3fn
        or weight.offsets is not None
        or weight.group_of is not None
        or rows == 0
        or columns != weight.scales.shape[1] * GROUP
    ):
        return None
    # One scale per row where rows of a block differ: at most a thirtieth of the size of the codes.
    first = weight.scales[::_TALL]
    is_tall = torch.equal(first.repeat_interleave(_TALL, 0)[:rows], weight.scales)
    scales = first if is_tall else weight.scales
    return Blocks(weight.codes.contiguous(), scales.t().contiguous(), _TALL if is_tall else 1)


def numbers(weight: Blocks) -> torch.Tensor:
    """Dequantize to float32, shape ``[rows, columns]``."""
    by_row = weight.scales.t().repeat_interleave(weight.tall, 0)[: weight.rows]
    return weight.codes.float() * by_row.repeat_interleave(GROUP, 1)
