"""Sums of products of bytes: two kernels with the same bits, each for the matrices it suits."""

from __future__ import annotations

import functools
from typing import Protocol

import torch

LARGE = 1 << 22
"""Numbers of a matrix from which on ``_int_mm`` packs it anew at each call with several rows: that
takes ten times as long as the product. Below, the fixed costs of oneDNN's outweigh it."""
_MOST_COLUMNS = (2**31 - 1) // (128 * 255)
"""Sums of more unsigned bytes might not fit into 32 bits."""
_ZERO = 128
"""What stands for 0 among unsigned bytes."""


class Sums(Protocol):
    """``x @ codes.T`` of integers.

    Attributes:
        nbytes: that the codes take.
    """

    nbytes: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Sums ``[n, out]``, int32 or float32 of the same, for whole numbers within a byte.

        Args:
            x: float32, shape ``[n, in]``, from -128 to 127; it is changed.
        """


def sums(codes: torch.Tensor) -> Sums:
    """The kernel for codes, int8 ``[out, in]``."""
    if codes.numel() >= LARGE and codes.shape[1] <= _MOST_COLUMNS and _is_exact():
        return PackedSums(codes)
    return PlainSums(codes)


class PlainSums:
    """Signed bytes as they lie: the fastest for small matrices, and for one row."""

    __slots__ = ("_codes", "nbytes")

    def __init__(self, codes: torch.Tensor) -> None:
        self.nbytes = codes.nbytes
        # Rows as they are: torch's kernel for one row is thrice as fast as on a transposed copy.
        self._codes = codes.contiguous().t()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Sums``."""
        return torch._int_mm(x.to(torch.int8), self._codes)


class PackedSums:
    """OneDNN's product, whose codes are packed once; it is fast with unsigned bytes only."""

    __slots__ = ("_packed", "_scale", "_zero", "nbytes")

    def __init__(self, codes: torch.Tensor) -> None:
        self.nbytes = codes.nbytes
        self._packed = torch.ops.onednn.qlinear_prepack(codes.contiguous(), None)
        self._scale = torch.ones(1)
        self._zero = torch.zeros(1, dtype=torch.int32)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Sums``."""
        made: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            *(x.add_(_ZERO).to(torch.uint8), 1.0, _ZERO),
            *(self._packed, self._scale, self._zero, None),
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        return made


@functools.cache
def _is_exact() -> bool:
    """Whether oneDNN's sums are exact on this processor.

    Without VNNI it adds in 16 bits. With AMX it takes the zero point away after it has rounded to
    float32: sums of unsigned bytes beyond 2^24 are one off then.
    """
    drawn = torch.Generator().manual_seed(0)
    codes = torch.randint(-128, 128, (64, 2048), generator=drawn)
    codes[:2] = torch.tensor([[127], [-128]])
    x = torch.randint(-127, 128, (40, 2048), generator=drawn)
    x[:3] = torch.tensor([[127], [-127], [1]])
    try:
        made = PackedSums(codes.to(torch.int8))(x.float())
    except (AttributeError, RuntimeError):
        return False
    return torch.equal(made, (x.double() @ codes.double().t()).float())
