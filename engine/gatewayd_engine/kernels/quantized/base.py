"""Protocol of the kernels for quantized matmul: quantization, dequantization and products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from gatewayd_engine.kernels.quantized.block_scales import Blocks
    from gatewayd_engine.kernels.quantized.packing import PackedWeight
    from gatewayd_engine.kernels.quantized.scratch import DequantizeScratch

Activation = Literal["silu", "gelu", "gelu_tanh"]
"""Activation functions of gates, as ``ModelSpec`` names them."""


class QuantizedRows(NamedTuple):
    """Activations quantized per row or group: ``codes * scales``.

    Attributes:
        codes: int8 or e4m3, shape ``[at least n, size]``; rows from the n-th on are undefined
            padding, as integer matmul requires a minimum number of rows.
        scales: one for each row and group of adjacent columns, float32, shape ``[n, groups]``,
            chosen so that the largest code is 127, or 448. NaN where the group contains NaN.
    """

    codes: torch.Tensor
    scales: torch.Tensor


class QuantizedKernels(Protocol):
    """Kernels of quantized matmul; a part of ``Kernels``, whose conventions apply."""

    def add_rms_norm_quant(
        self,
        x: torch.Tensor,
        delta: torch.Tensor | None,
        weight: torch.Tensor,
        eps: float,
        codes: torch.dtype,
        group: int = 0,
    ) -> QuantizedRows:
        """Fuse ``add_rms_norm`` and ``quantize``, without storing the intermediate result."""

    def gated_quant(
        self, gate_up: torch.Tensor, act: Activation, codes: torch.dtype, group: int = 0
    ) -> QuantizedRows:
        """Fuse ``gated`` and ``quantize``, without storing the intermediate result."""

    def quantize(self, x: torch.Tensor, codes: torch.dtype, group: int = 0) -> QuantizedRows:
        """Quantize rows dynamically and symmetrically: the largest magnitude gets the largest code.

        Args:
            x: shape ``[n, size]``.
            codes: int8, rounded half to even, or e4m3.
            group: adjacent columns that share a scale, a power of two that divides ``size``; 0 for
                one scale per row.
        """

    def dequantize_sums(
        self,
        sums: torch.Tensor,
        lines: torch.Tensor,
        rows: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        """Dequantize the sums of an integer matmul: ``sums * lines * rows + bias``.

        Args:
            sums: int32, shape ``[n or more, size]``; dense.
            lines: scales of the activations' rows, float32, shape ``[n, 1]``.
            rows: scales of the weight's rows, float32, shape ``[size]``.
            bias: shape ``[size]``, or None.
            out: fully overwritten, shape ``[n, size]``.
        """

    def grouped_mm(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        bias: torch.Tensor | None,
        scratch: DequantizeScratch,
        out: torch.Tensor,
    ) -> None:
        """Multiply a few tokens with a packed low-bit matrix: ``x @ weight.T + bias``.

        Args:
            x: shape ``[n, columns]``, ``n`` at most ``scratch.MOST_LINES``.
            weight: packed matrix.
            bias: shape ``[rows]``, or None.
            scratch: scratch in which space for the matrix has been reserved.
            out: fully overwritten, shape ``[n, rows]``, of the dtype of ``x``.
        """

    def dequantize_rows(self, weight: PackedWeight, first: int, out: torch.Tensor) -> None:
        """Dequantize some rows of a packed low-bit matrix, transposed.

        Args:
            weight: packed matrix.
            first: first row to dequantize.
            out: fully overwritten, shape ``[columns, count]``: each row becomes a column.
        """

    def block_mm(
        self,
        x: QuantizedRows,
        weight: Blocks,
        bias: torch.Tensor | None,
        scratch: DequantizeScratch,
        out: torch.Tensor,
    ) -> None:
        """Multiply group-quantized activations with a block-scaled matrix.

        Computes ``x @ weight.T + bias``.

        Args:
            x: quantized in groups of ``block_scales.GROUP``.
            weight: block-scaled matrix.
            bias: shape ``[rows]``, or None.
            scratch: scratch in which space for the matrix has been reserved.
            out: fully overwritten, shape ``[n, rows]``.
        """

    def block_mm_tiles(
        self,
        x: QuantizedRows,
        weight: Blocks,
        bias: torch.Tensor | None,
        scratch: DequantizeScratch,
        out: torch.Tensor,
    ) -> None:
        """Run ``block_mm`` once for each of its tile sizes, so that all of them are compiled."""
