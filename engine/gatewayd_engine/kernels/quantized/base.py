"""What products of few bits need of a device's kernels: codes, and numbers of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from gatewayd_engine.kernels.quantized.block_scales import Blocks
    from gatewayd_engine.kernels.quantized.packing import PackedWeight
    from gatewayd_engine.kernels.quantized.scratch import DequantizeScratch

Activation = Literal["silu", "gelu", "gelu_tanh"]
"""Functions of a gate, by the names that ``ModelSpec`` gives them."""


class Rounded(NamedTuple):
    """Rows rounded to codes: ``codes * scales``.

    Attributes:
        codes: int8 or e4m3, shape ``[lines, size]``; lines from the n-th on mean nothing, for
            products of integers take no fewer than some.
        scales: of each row and group of neighbours, float32, shape ``[n, groups]``; the largest of
            its codes is 127, or 448. Not a number where one of them is none.
    """

    codes: torch.Tensor
    scales: torch.Tensor


class Products(Protocol):
    """Kernels around products of few bits; see ``Kernels``, of which they are a part."""

    def add_rms_norm_quant(
        self,
        x: torch.Tensor,
        delta: torch.Tensor | None,
        weight: torch.Tensor,
        eps: float,
        codes: torch.dtype,
        group: int = 0,
    ) -> Rounded:
        """``quantise`` what ``add_rms_norm`` would return, without writing that."""

    def gated_quant(
        self, gate_up: torch.Tensor, act: Activation, codes: torch.dtype, group: int = 0
    ) -> Rounded:
        """``quantise`` what ``gated`` would return, without writing that."""

    def quantise(self, x: torch.Tensor, codes: torch.dtype, group: int = 0) -> Rounded:
        """Round rows to codes, with scales at which the largest become the largest code.

        Args:
            x: shape ``[n, size]``.
            codes: int8, rounded to even, or e4m3.
            group: neighbours that share a scale, a power of two that divides ``size``; 0 for one
                scale of each row.
        """

    def scaled(
        self,
        sums: torch.Tensor,
        lines: torch.Tensor,
        rows: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        """Write what sums of integers stand for: ``sums * lines * rows + bias``.

        Args:
            sums: int32, shape ``[n or more, size]``; dense.
            lines: scales, float32, shape ``[n, 1]``.
            rows: scales, float32, shape ``[size]``.
            bias: shape ``[size]``; None for nothing.
            out: all of it is written, shape ``[n, size]``.
        """

    def grouped_mm(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        bias: torch.Tensor | None,
        room: DequantizeScratch,
        out: torch.Tensor,
    ) -> None:
        """Multiply a few lines with a matrix of few bits: ``x @ weight.T + bias``.

        Args:
            x: shape ``[n, columns]``, ``n`` at most ``room.MOST_LINES``.
            weight: the matrix.
            bias: shape ``[rows]``; None for nothing.
            room: made for the matrix.
            out: all of it is written, shape ``[n, rows]``, of the type of ``x``.
        """

    def expand(self, weight: PackedWeight, first: int, out: torch.Tensor) -> None:
        """Write the numbers of some rows of a matrix of few bits.

        Args:
            weight: the matrix.
            first: of the rows.
            out: all of it is written, shape ``[columns, count]``: a row's numbers in a column.
        """

    def block_mm(
        self,
        x: Rounded,
        weight: Blocks,
        bias: torch.Tensor | None,
        room: DequantizeScratch,
        out: torch.Tensor,
    ) -> None:
        """Multiply codes with codes, both with a scale for each group: ``x @ weight.T + bias``.

        Args:
            x: rounded in groups of ``blocks.GROUP``.
            weight: the matrix.
            bias: shape ``[rows]``; None for nothing.
            room: made for the matrix.
            out: all of it is written, shape ``[n, rows]``.
        """

    def block_mm_tiles(
        self,
        x: Rounded,
        weight: Blocks,
        bias: torch.Tensor | None,
        room: DequantizeScratch,
        out: torch.Tensor,
    ) -> None:
        """``block_mm`` in all ways in which any number of lines is multiplied: each is compiled."""
