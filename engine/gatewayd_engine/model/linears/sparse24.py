"""2:4 sparse linear layer on GPUs."""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.sparse import to_sparse_semi_structured

_ROWS, _COLUMNS = 32, 64
"""Multiples that the sides must be of, for cuSPARSELt as well as CUTLASS."""
_AMPERE = 8
_TYPES = (torch.bfloat16, torch.float16)


class SparseLinear:
    """``x @ values.T + bias`` with values in compressed semi-structured form.

    Args:
        values: on a GPU, shape ``[rows, columns]``, for which ``fits_sparse24``.
        bias: of the same dtype, shape ``[rows]``.
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
        """See ``LinearOp``; the addition is deferred to the next norm, which reads ``onto``."""
        return self(x)


def fits_sparse24(values: torch.Tensor) -> bool:
    """Whether a matrix can be multiplied as 2:4 sparse: on Ampere and later GPUs."""
    rows, columns = values.shape
    return (
        values.is_cuda
        and values.dtype in _TYPES
        and rows % _ROWS == 0
        and columns % _COLUMNS == 0
        and torch.cuda.get_device_capability(values.device)[0] >= _AMPERE
    )
