"""A matrix that is kept as codes and made dense for each product: the measure for all others."""

from __future__ import annotations

import torch

from gatewayd_engine.model.batch_invariance import Unsteady
from gatewayd_engine.model.weights import dense, some_rows
from gatewayd_hooks.quantization import GroupedWeight

_BLOCK = 1 << 19
"""Numbers that are dense at once: they stay in the cache until they are multiplied."""


class DequantizedLinear(Unsteady):
    """``x @ dense(weight).T + bias``: exact for every kind of codes, and slow.

    In float32, or its input's type if that is wider, or in float64 if it is to be steady.
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
            weight = dense(some_rows(self._weight, some)).to(kind)
            torch.mm(wide, weight.t(), out=made[:, some])
        if self._bias is not None:
            made.add_(self._bias)
        return made.to(x.dtype) if out is None else out.copy_(made)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        onto.add_(self(x))
        return None
