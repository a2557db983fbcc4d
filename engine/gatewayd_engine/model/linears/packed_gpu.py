"""Weight-only quantized linear layer on GPUs.

Few rows are multiplied by a kernel that reads the codes. For many rows the weight is dequantized
block by block for each product, into scratch memory shared by all matrices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gatewayd_engine.kernels.quantized.scratch import MOST_LINES, DequantizeScratch

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels
    from gatewayd_engine.kernels.quantized.packing import PackedWeight


class GroupedLinear:
    """``x @ (codes * scales + offsets).T + bias`` with unquantized activations.

    Args:
        weight: the matrix.
        bias: shape ``[rows]``.
        kernels: of the device.
        room: scratch memory, reserved for the matrix.
    """

    __slots__ = ("_at_once", "_bias", "_kernels", "_room", "_weight")
    rounds_inputs = False

    def __init__(
        self,
        weight: PackedWeight,
        bias: torch.Tensor | None,
        kernels: Kernels,
        room: DequantizeScratch,
    ) -> None:
        self._weight = weight
        self._bias = bias
        self._kernels = kernels
        self._room = room
        self._at_once = room.rows_at_once(weight)

    @property
    def nbytes(self) -> int:
        """See ``LinearOp``."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``LinearOp``."""
        weight = self._weight
        if out is None:
            out = x.new_empty(len(x), weight.rows)
        if len(x) <= MOST_LINES:
            self._kernels.grouped_mm(x, weight, self._bias, self._room, out)
            return out
        for first in range(0, weight.rows, self._at_once):
            count = min(self._at_once, weight.rows - first)
            numbers = self._room.dense[: weight.columns * count].view(weight.columns, count)
            self._kernels.dequantize_rows(weight, first, numbers)
            some = out[:, first : first + count]
            if self._bias is None:
                torch.mm(x, numbers, out=some)
            else:
                torch.addmm(self._bias[first : first + count], x, numbers, out=some)
        return out

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``; the addition is deferred to the next norm, which reads ``onto``."""
        return self(x)
