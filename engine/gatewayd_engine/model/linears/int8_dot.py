"""Integer matrix products of int8 codes on CPUs: two kernels with identical results."""

from __future__ import annotations

import functools
from typing import Protocol

import torch

LARGE = 1 << 22
"""Elements of a matrix from which on ``_int_mm`` repacks it at each call with several rows, which
takes ten times as long as the product. Below, the fixed costs of oneDNN's kernel are larger."""
_MOST_COLUMNS = (2**31 - 1) // (128 * 255)
"""Sums over more columns of unsigned bytes may overflow 32 bits."""
_ZERO = 128
"""Zero point of the unsigned bytes."""


class Sums(Protocol):
    """Integer product ``x @ codes.T``.

    Attributes:
        nbytes: size of the codes.
    """

    nbytes: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply whole numbers within the range of int8.

        Args:
            x: float32, shape ``[n, in]``, whole numbers from -128 to 127; modified in place.

        Returns:
            Exact sums, int32 or float32, shape ``[n, out]``.
        """


def sums(codes: torch.Tensor) -> Sums:
    """Return the faster kernel for codes, int8 ``[out, in]``."""
    if codes.numel() >= LARGE and codes.shape[1] <= _MOST_COLUMNS and _is_exact():
        return PackedSums(codes)
    return PlainSums(codes)


class PlainSums:
    """``torch._int_mm`` on unpacked signed bytes: fastest for small matrices and for one row."""

    __slots__ = ("_codes", "nbytes")

    def __init__(self, codes: torch.Tensor) -> None:
        self.nbytes = codes.nbytes
        # Row-major: torch's kernel for one row is three times as fast as on a transposed copy.
        self._codes = codes.contiguous().t()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Sums``."""
        return torch._int_mm(x.to(torch.int8), self._codes)


class PackedSums:
    """OneDNN's product with prepacked codes; activations are unsigned, its only fast case."""

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

    Without VNNI it accumulates in 16 bits. With AMX it subtracts the zero point after rounding to
    float32, so that sums of unsigned bytes beyond 2^24 are off by one.
    """
    drawn = torch.Generator().manual_seed(0)
    codes = torch.randint(-128, 128, (64, 2048), generator=drawn)
    # The largest sums, where a processor that saturates or rounds shows it.
    codes[:2] = torch.tensor([[127], [-128]])
    x = torch.randint(-127, 128, (40, 2048), generator=drawn)
    x[:3] = torch.tensor([[127], [-127], [1]])
    try:
        made = PackedSums(codes.to(torch.int8))(x.float())
    # Torch has no such operation, or none for this processor.
    except (AttributeError, RuntimeError):
        return False
    return torch.equal(made, (x.double() @ codes.double().t()).float())
