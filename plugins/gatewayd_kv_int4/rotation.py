"""Multiplication by Hadamard matrices with results independent of the batch.

A float32 matrix product has different rounding errors for another number of rows, and a record must
not depend on them. So the operands are integers, whose sums are exact.
"""

from __future__ import annotations

from functools import cache

import torch

_MOST_SUM = 2.0**23
"""Integers up to it, and some beyond, are exact in float32."""
_LEAST = 2.0**-126
"""Prevents division by zero, and changes nothing else."""


def rotated(numbers: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiply heads by a Hadamard matrix of the largest power of two that divides them.

    Args:
        numbers: float32, shape ``[..., head_dim]``; unchanged. Each is rounded to multiples of
            ``head_dim / 2^23`` of the largest in its head.
        factor: of the products. Multiplying twice scales by the size of the matrix.
    """
    dim = numbers.shape[-1]
    size = dim & -dim
    # The largest number becomes 2**23 / size, so any sum of `size` of them is an exact float32.
    unit = numbers.abs().amax(-1, keepdim=True).mul_(size / _MOST_SUM).add_(_LEAST)
    whole = numbers.div(unit).round_().view(-1, size).mm(_hadamard(size, numbers.device))
    return whole.view(numbers.shape).mul_(unit.mul_(factor))


@cache
def _hadamard(size: int, device: torch.device) -> torch.Tensor:
    """Return a symmetric matrix of 1 and -1, whose square is ``size`` times the identity."""
    matrix = torch.ones(1, 1, device=device)
    while len(matrix) < size:
        matrix = torch.cat([matrix.repeat(1, 2), torch.cat([matrix, -matrix], 1)])
    return matrix
