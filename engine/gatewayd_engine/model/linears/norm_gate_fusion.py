"""Fusion of norms and gated activations into float matrix products, for small batches.

A fused norm passes its input on as a ``FusedNorm`` and the matrix that follows applies the norm; a
matrix that has applied the gate returns a ``FusedGate``. The tuner selects at startup for which
numbers of rows to fuse.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

MOST_LINES = 16
"""Smallest number of rows that a matrix unit multiplies; fusion is limited to it."""


class FusedNorm(NamedTuple):
    """Input of a norm that the next matrix has to apply: the residual stream.

    Attributes:
        x: shape ``[n, size]``.
        scale: the norm's weight, float32, shape ``[size]``.
        eps: added to the mean square.
    """

    x: torch.Tensor
    scale: torch.Tensor
    eps: float


class FusedGate(NamedTuple):
    """Output of a matrix with the gated activation applied, shape ``[n, size]``."""

    value: torch.Tensor


class Fusion:
    """Fusion settings shared by the matrices of one model.

    Attributes:
        lines: numbers of rows at which norms and gates are fused, at most ``MOST_LINES``.
        is_possible: whether some norm is followed by a matrix that can apply it.
    """

    __slots__ = ("is_possible", "lines")

    def __init__(self) -> None:
        self.lines: set[int] = set()
        self.is_possible = False
