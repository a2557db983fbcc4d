"""Products of matrices of which two of four neighbours are zeros, as a GPU makes them."""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.sparse import to_sparse_semi_structured

_ROWS, _COLUMNS = 32, 64
"""What sides have to be multiples of, whichever library multiplies."""
_AMPERE = 8
_TYPES = (torch.bfloat16, torch.float16)


class SparseLinear:
    """``x @ values.T + bias``; half of the numbers are kept, and where they were.

    Args:
        values: on a device, shape ``[rows, columns]``; those that ``is_for_sparse`` takes.
        bias: of their type, shape ``[rows]``.
    """

    __slots__ = ("_bias", "_weight")

    rounds_inputs = False

    def __init__(self, values: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._bias = bias
        self._weight = to_sparse_semi_structured(values)

    @property
    def nbytes(self) -> int:
        """See ``LinearOp``."""
        kept = (self._weight.packed, self._weight.meta, self._bias)
        return sum(tensor.nbytes for tensor in kept if tensor is not None)

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``LinearOp``."""
        made = functional.linear(x, self._weight, self._bias)
        return made if out is None else out.copy_(made)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``; the next norm reads the stream anyway, and adds."""
        return self(x)


def is_for_sparse(values: torch.Tensor) -> bool:
    """Whether a device multiplies a matrix so: Ampere's and later do."""
    rows, columns = values.shape
    return (
        values.is_cuda
        and values.dtype in _TYPES
        and rows % _ROWS == 0
        and columns % _COLUMNS == 0
        and torch.cuda.get_device_capability(values.device)[0] >= _AMPERE
    )
