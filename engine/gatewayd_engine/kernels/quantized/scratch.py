"""Scratch memory of low-bit matmul, shared by all matrices of a device, which run in sequence.

It is allocated while models are loaded. From the first CUDA graph capture on it must not move, as
captured steps have its addresses: models loaded later get a scratch of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gatewayd_engine.kernels.quantized.block_scales import Blocks
    from gatewayd_engine.kernels.quantized.packing import PackedWeight

MOST_LINES = 32
"""Most tokens of a step for which codes are multiplied directly. For more, the matrix is
dequantized first, as the cost of that is amortised over many reads by the tensor cores."""
ROWS = 64
"""Rows of a matrix that one program processes."""
_PROGRAMS = 792
"""Target number of programs: six on each of the 132 multiprocessors of an H200, to hide latency."""
_LEAST_BLOCKS = 4
"""Least pieces of a sum per program: each split costs the traffic of its partial sums."""
_MOST_SPLITS = 8
_DENSE = 1 << 26
"""Most numbers that are dequantized at a time: 128 MiB in bfloat16, far beyond a cache."""


class DequantizeScratch:
    """Scratch buffers of low-bit matmul; only one product may use them at a time.

    Attributes:
        partial: partial sums of split-K, float32, at least ``[splits, MOST_LINES, rows]`` for each
            matrix.
        arrived: counters of finished splits, zeros between two products, int32.
        dense: dequantized matrix, or some of its rows, of the dtype of activations.
    """

    __slots__ = ("_is_sealed", "arrived", "dense", "partial")

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.partial = torch.empty(0, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(0, dtype=torch.int32, device=device)
        self.dense = torch.empty(0, dtype=dtype, device=device)
        self._is_sealed = False

    def seal(self) -> None:
        """Forbid growth from now on: captured steps have the addresses of the buffers."""
        self._is_sealed = True

    def reserve(self, weight: PackedWeight) -> None:
        """Grow the buffers as needed to multiply a matrix.

        Raises:
            RuntimeError: the scratch is sealed.
        """
        self.reserve_parts(weight)
        self.dense = _grown(self.dense, weight.columns * self.rows_at_once(weight))

    def reserve_parts(self, weight: PackedWeight | Blocks) -> None:
        """Grow the buffers as needed to multiply a matrix that is never dequantized.

        Raises:
            RuntimeError: the scratch is sealed.
        """
        if self._is_sealed:
            raise RuntimeError("scratch is in use by captured steps and cannot grow; use another")
        parts = splits(weight)
        if parts > 1:
            self.partial = _grown(self.partial, parts * MOST_LINES * weight.rows)
            # New memory is not zero. Afterwards each product leaves its counters at zero.
            self.arrived = _grown(self.arrived, -(-weight.rows // ROWS)).zero_()

    @staticmethod
    def rows_at_once(weight: PackedWeight) -> int:
        """Return how many rows are dequantized at a time; a multiple of 64, or all."""
        most = max(_DENSE // weight.columns // ROWS, 1) * ROWS
        return min(most, weight.rows)


class SharedScratch:
    """Lazily created scratch, shared by models whose steps run in sequence on one stream."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: DequantizeScratch | None = None

    def on(self, device: torch.device, dtype: torch.dtype) -> DequantizeScratch:
        """Return the scratch, creating it for the first low-bit matrix.

        Args:
            device: device of all matrices.
            dtype: dtype of all activations.
        """
        if self._made is None:
            self._made = DequantizeScratch(device, dtype)
        return self._made

    def seal(self) -> None:
        """Seal the scratch if there is one; see ``DequantizeScratch``."""
        if self._made is not None:
            self._made.seal()


def splits(weight: PackedWeight | Blocks) -> int:
    """Return the split-K factor of a product; it does not depend on the number of tokens."""
    # Scratch is reserved while models load, before the tokens of any step are known.
    programs = -(-weight.rows // ROWS)
    return max(1, min(-(-_PROGRAMS // programs), weight.pieces // _LEAST_BLOCKS, _MOST_SPLITS))


def _grown(tensor: torch.Tensor, numel: int) -> torch.Tensor:
    return tensor if tensor.numel() >= numel else tensor.new_empty(numel)
