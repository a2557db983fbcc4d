"""Memory in which matrices of few bits are multiplied: one after the other, all of a device in one.

It is made while models are loaded. From the first capture on it stays where it is, for captured
steps have its addresses: models that are loaded later have a scratch of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gatewayd_engine.kernels.quantized.block_scales import Blocks
    from gatewayd_engine.kernels.quantized.packing import PackedWeight

MOST_LINES = 32
"""Lines of a step that are multiplied with codes. More of them are multiplied with numbers, which
the matrix unit reads many times for each time that they are made."""
ROWS = 64
"""Rows of a matrix that one program makes."""
_PROGRAMS = 792
"""Enough for six on each of 132 multiprocessors, those of an H200: each waits for much."""
_LEAST_BLOCKS = 4
"""Pieces of a sum that a program had better have: each split costs its sums."""
_MOST_SPLITS = 8
_DENSE = 1 << 26
"""Most numbers that a matrix is made at a time: 128 MiB in bfloat16, far beyond a cache."""


class DequantizeScratch:
    """What products write to beside their answers; no two of them at a time.

    Attributes:
        partial: sums of parts, float32, at least ``[splits, MOST_LINES, rows]`` of each matrix.
        arrived: how many parts are there, zeros between two products, int32.
        dense: numbers of a matrix, or of some of its rows, of the type of activations.
    """

    __slots__ = ("_is_sealed", "arrived", "dense", "partial")

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.partial = torch.empty(0, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(0, dtype=torch.int32, device=device)
        self.dense = torch.empty(0, dtype=dtype, device=device)
        self._is_sealed = False

    def seal(self) -> None:
        """Stay as it is from now on: steps are captured, which have its addresses."""
        self._is_sealed = True

    def reserve(self, weight: PackedWeight) -> None:
        """Grow so that a matrix can be multiplied.

        Raises:
            RuntimeError: it is sealed.
        """
        self.reserve_parts(weight)
        self.dense = _grown(self.dense, weight.columns * self.rows_at_once(weight))

    def reserve_parts(self, weight: PackedWeight | Blocks) -> None:
        """The same for one that is never made numbers."""
        if self._is_sealed:
            raise RuntimeError("captured steps multiply in this scratch; take another")
        parts = splits(weight)
        if parts > 1:
            self.partial = _grown(self.partial, parts * MOST_LINES * weight.rows)
            self.arrived = _grown(self.arrived, -(-weight.rows // ROWS)).zero_()

    @staticmethod
    def rows_at_once(weight: PackedWeight) -> int:
        """Of how many rows numbers are made at a time; a multiple of 64, or all."""
        most = max(_DENSE // weight.columns // ROWS, 1) * ROWS
        return min(most, weight.rows)


class SharedScratch:
    """One scratch for models whose steps are launched on one stream, one after the other."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: DequantizeScratch | None = None

    def on(self, device: torch.device, dtype: torch.dtype) -> DequantizeScratch:
        """The scratch, which the first matrix of few bits makes.

        Args:
            device: of all matrices.
            dtype: of all activations.
        """
        if self._made is None:
            self._made = DequantizeScratch(device, dtype)
        return self._made

    def seal(self) -> None:
        """See ``DequantizeScratch``; where there is none nothing is captured with it."""
        if self._made is not None:
            self._made.seal()


def splits(weight: PackedWeight | Blocks) -> int:
    """Among how many programs each sum of a product is split; the same for any number of lines."""
    programs = -(-weight.rows // ROWS)
    return max(1, min(-(-_PROGRAMS // programs), weight.pieces // _LEAST_BLOCKS, _MOST_SPLITS))


def _grown(tensor: torch.Tensor, numel: int) -> torch.Tensor:
    return tensor if tensor.numel() >= numel else tensor.new_empty(numel)
