"""Matrices of 8-bit floats of which blocks share a scale, as kernels read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import GroupedWeight

GROUP = 128
"""Columns of a block, and numbers of an input that share a scale: what is summed before scaling."""
_TALL = 128
"""Rows of a block, as checkpoints have them."""


class Blocks(NamedTuple):
    """A matrix ``[rows, columns]``, ``code * scale``.

    Attributes:
        codes: e4m3, shape ``[rows, columns]``; dense.
        scales: float32, shape ``[groups, ceil(rows / tall)]``.
        tall: rows that share one, 128; 1 where matrices were joined within a block.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    tall: int

    @property
    def rows(self) -> int:
        """Numbers of the output."""
        return self.codes.shape[0]

    @property
    def columns(self) -> int:
        """Numbers of the input."""
        return self.codes.shape[1]

    @property
    def pieces(self) -> int:
        """What each sum is made of: columns that are loaded together."""
        return self.scales.shape[0]

    @property
    def nbytes(self) -> int:
        """What it takes."""
        return self.codes.nbytes + self.scales.nbytes


def blocks(weight: GroupedWeight) -> Blocks | None:
    """A weight in blocks; None for one that is in others, or meant for inputs of floats."""
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
    # By row where rows of a block differ: no more than a thirtieth of what the codes take.
    first = weight.scales[::_TALL]
    is_tall = torch.equal(first.repeat_interleave(_TALL, 0)[:rows], weight.scales)
    scales = first if is_tall else weight.scales
    return Blocks(weight.codes.contiguous(), scales.t().contiguous(), _TALL if is_tall else 1)


def numbers(weight: Blocks) -> torch.Tensor:
    """What the codes stand for, float32, shape ``[rows, columns]``."""
    by_row = weight.scales.t().repeat_interleave(weight.tall, 0)[: weight.rows]
    return weight.codes.float() * by_row.repeat_interleave(GROUP, 1)
