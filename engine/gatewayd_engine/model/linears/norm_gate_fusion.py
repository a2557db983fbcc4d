"""Norms and gates that matrices of floats take over from the kernels around them, for few lines.

A norm leaves its work to the matrix behind it by handing on what it was given; a matrix whose gate
is done says so to the gate. Which numbers of lines are computed so is decided at the start.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

MOST_LINES = 16
"""As many as a matrix unit multiplies at least."""


class FusedNorm(NamedTuple):
    """The residual stream before a norm.

    Attributes:
        x: shape ``[n, size]``.
        scale: the norm's weight, float32, shape ``[size]``.
        eps: added to the mean square.
    """

    x: torch.Tensor
    scale: torch.Tensor
    eps: float


class FusedGate(NamedTuple):
    """What a gate would have made of a matrix's answer, shape ``[n, size]``."""

    value: torch.Tensor


class Fusion:
    """What the matrices of one model have in common.

    Attributes:
        lines: numbers of them for which norms and gates are fused, at most ``MOST_LINES``.
        is_possible: whether there is a norm before a matrix that could take it over.
    """

    __slots__ = ("is_possible", "lines")

    def __init__(self) -> None:
        self.lines: set[int] = set()
        self.is_possible = False
