"""Reference linear layer that dequantizes its codes for each product."""

from __future__ import annotations

import torch

from gatewayd_engine.model.batch_invariance import BatchInvariantMode
from gatewayd_engine.model.weights import dense, slice_rows
from gatewayd_hooks.quantization import GroupedWeight

_BLOCK = 1 << 19
"""Elements that are dequantized at a time, so that they stay in the cache until multiplied."""


class DequantizedLinear(BatchInvariantMode):
    """``x @ dense(weight).T + bias``: exact for every code format, and slow.

    Computed in float32, or the input's dtype if that is wider; batch-invariant in float64.
    """

    __slots__ = ("_bias", "_weight")
    rounds_inputs = False

    def __init__(self, weight: GroupedWeight, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self._bias = bias
        self._weight = weight

    @property
    def nbytes(self) -> int:
        """See ``LinearOp``."""
        tensors = (*self._weight[:3], self._weight.group_of, self._bias)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``LinearOp``."""
        kind = torch.float64 if self.is_steady else torch.promote_types(x.dtype, torch.float32)
        wide = x.to(kind)
        rows, columns = self._weight.codes.shape
        made = wide.new_empty(len(x), rows)
        step = max(1, _BLOCK // columns)
        for begin in range(0, rows, step):
            some = slice(begin, begin + step)
            weight = dense(slice_rows(self._weight, some)).to(kind)
            torch.mm(wide, weight.t(), out=made[:, some])
        if self._bias is not None:
            made.add_(self._bias)
        return made.to(x.dtype) if out is None else out.copy_(made)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        onto.add_(self(x))
        return None
