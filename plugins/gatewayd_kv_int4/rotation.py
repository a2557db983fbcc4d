"""Hadamard matrices, multiplied so that a number does not depend on what is beside it.

A product of matrices in float32 has other last digits for another number of rows, and a record
must not depend on them. So what is multiplied are whole numbers, whose sums are exact.
"""

from __future__ import annotations

from functools import cache

import torch

_MOST_SUM = 2.0**23
"""Whole numbers up to it, and a few beyond, are exact in float32."""
_LEAST = 2.0**-126
"""Keeps zeros from being divided by zero, and changes nothing else."""


def rotated(numbers: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiply heads by a Hadamard matrix, whose size is the power of two that divides them.

    Args:
        numbers: float32, shape ``[..., head_dim]``; unchanged. Of each what is below ``head_dim``
            parts in 2^23 of the largest in its head is rounded.
        factor: of the products. The size of the matrix is what twice multiplied comes to.
    """
    dim = numbers.shape[-1]
    size = dim & -dim
    unit = numbers.abs().amax(-1, keepdim=True).mul_(size / _MOST_SUM).add_(_LEAST)
    whole = numbers.div(unit).round_().view(-1, size).mm(_hadamard(size, numbers.device))
    return whole.view(numbers.shape).mul_(unit.mul_(factor))


@cache
def _hadamard(size: int, device: torch.device) -> torch.Tensor:
    """Ones and minus ones, symmetric; its square is ``size`` times the identity."""
    matrix = torch.ones(1, 1, device=device)
    while len(matrix) < size:
        matrix = torch.cat([matrix.repeat(1, 2), torch.cat([matrix, -matrix], 1)])
    return matrix
