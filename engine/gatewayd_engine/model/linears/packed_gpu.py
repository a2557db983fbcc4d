"""Weight-only quantized linear layer on GPUs.

Few rows are multiplied by a kernel that reads the codes. For many rows the weight is dequantized
block by block for each product, into scratch memory shared by all matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from gatewayd_engine.kernels.quantized.scratch import MOST_LINES, DequantizeScratch

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels
    from gatewayd_engine.kernels.quantized.packing import PackedWeight


@dataclass(slots=True, eq=False, repr=False)
class GroupedLinear:
    """``x @ (codes * scales + offsets).T + bias`` with unquantized activations.

    Args:
        weight: the matrix.
        bias: shape ``[rows]``.
        kernels: of the device.
        room: scratch memory, reserved for the matrix.
    """

    _weight: PackedWeight
    _bias: torch.Tensor | None
    _kernels: Kernels
    _room: DequantizeScratch
    _at_once: int = field(init=False)
    rounds_inputs = False

    def __post_init__(self) -> None:
        self._at_once = self._room.rows_at_once(self._weight)

    @property
    def nbytes(self) -> int:
        """See ``LinearOp``."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``LinearOp``."""
        weight = self._weight
        if out is None:
            out = x.new_empty(len(x), weight.rows)
        # Few tokens are bound by reading the weight, so codes are read.
        if len(x) <= MOST_LINES:
            self._kernels.grouped_mm(x, weight, self._bias, self._room, out)
            return out
        # Many are bound by compute, so cuBLAS multiplies floats, in parts that fit the scratch.
        # Launches are in order, so a part may overwrite the one before.
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
