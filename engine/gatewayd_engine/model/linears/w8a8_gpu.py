"""W8A8 linear layers on GPUs: products of 8-bit codes, int8 or fp8.

Activations are quantized per row, so that results do not depend on the rest of the batch. A norm or
gate whose output only such a matrix consumes emits codes directly; the matrix quantizes other
inputs, and all inputs where the checkpoint has a static scale.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from gatewayd_engine.kernels.quantized.base import QuantizedRows
from gatewayd_engine.kernels.quantized.block_scales import GROUP
from gatewayd_engine.model.linears.static_scales import codes_of, scales_of

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels
    from gatewayd_engine.kernels.quantized.block_scales import Blocks
    from gatewayd_engine.kernels.quantized.scratch import DequantizeScratch
    from gatewayd_hooks.quantization import GroupedWeight

_LEAST_LINES = 32


class RoundedLinear(ABC):
    """Base of linear layers that multiply quantized activations.

    Args:
        takes: dtype of the activation codes.
        group: adjacent input features that share a scale; 0 for one scale per row.
        rows: output features.
        bias: float, shape ``[rows]``.
        kernels: of the device.
        dtype: of outputs.

    Attributes:
        takes, group: as given.
        is_static: whether inputs have a static scale, which a fused norm or gate does not apply.
    """

    __slots__ = ("_bias", "_dtype", "_kernels", "_rows", "group", "takes")
    rounds_inputs = True

    def __init__(
        self,
        takes: torch.dtype,
        group: int,
        rows: int,
        bias: torch.Tensor | None,
        kernels: Kernels,
        dtype: torch.dtype,
    ) -> None:
        self.takes = takes
        self.group = group
        self._rows = rows
        self._bias = bias
        self._kernels = kernels
        self._dtype = dtype

    @property
    def is_static(self) -> bool:
        """See the class."""
        return False

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """See ``LinearOp``."""

    def __call__(
        self, x: torch.Tensor | QuantizedRows, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``LinearOp``."""
        given = x if isinstance(x, QuantizedRows) else self._rounded(x)
        # Codes may have padding rows; scales have one row for each token.
        n = len(given.scales)
        if out is None:
            out = torch.empty((n, self._rows), dtype=self._dtype, device=given.scales.device)
        if n:
            self._multiply(given, out)
        return out

    def add_to(self, onto: torch.Tensor, x: torch.Tensor | QuantizedRows) -> torch.Tensor | None:
        """See ``LinearOp``; the addition is deferred to the next norm, which reads ``onto``."""
        return self(x)

    def _rounded(self, x: torch.Tensor) -> QuantizedRows:
        return self._kernels.quantize(x, self.takes, self.group)

    @abstractmethod
    def _multiply(self, given: QuantizedRows, out: torch.Tensor) -> None:
        """Multiply quantized activations into ``out``."""


class RowLinear(RoundedLinear):
    """W8A8 linear layer with per-row weight scales.

    Args:
        weight: codes with one group and no offsets.
        bias: float, shape ``[rows]``.
        kernels: of the device.
        dtype: of outputs.
        scale: static input scale; None for dynamic per-row scales.
    """

    __slots__ = ("_codes", "_scale", "_scales")

    def __init__(
        self,
        weight: GroupedWeight,
        bias: torch.Tensor | None,
        kernels: Kernels,
        dtype: torch.dtype,
        scale: float | None = None,
    ) -> None:
        super().__init__(weight.codes.dtype, 0, len(weight.codes), bias, kernels, dtype)
        self._scale = scale
        # Column-major, as products of 8-bit codes on a GPU read their second factor.
        self._codes = weight.codes.contiguous().t()
        self._scales = weight.scales.reshape(1, -1).contiguous()

    @property
    def is_static(self) -> bool:
        """See ``RoundedLinear``."""
        return self._scale is not None

    @property
    def nbytes(self) -> int:
        """See ``LinearOp``."""
        tensors = (self._codes, self._scales, self._bias)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def _rounded(self, x: torch.Tensor) -> QuantizedRows:
        if self._scale is None:
            return super()._rounded(x)
        scales, codes = scales_of(x, self._scale), codes_of(x, self._scale, self.takes)
        if self.takes != torch.int8:
            return QuantizedRows(codes, scales)
        # torch._int_mm on a GPU needs more than 16 rows.
        lines = codes.new_zeros((max(len(x), _LEAST_LINES), x.shape[1]), dtype=torch.int8)
        lines[: len(x)] = codes
        return QuantizedRows(lines, scales)


class Int8DeviceLinear(RowLinear):
    """Int8 product with exact integer sums, and a kernel that applies the scales."""

    __slots__ = ()

    def _multiply(self, given: QuantizedRows, out: torch.Tensor) -> None:
        sums = torch._int_mm(given.codes, self._codes)
        self._kernels.dequantize_sums(sums, given.scales, self._scales[0], self._bias, out)


class Fp8DeviceLinear(RowLinear):
    """Fp8 product with fused per-row scales."""

    __slots__ = ()

    def _multiply(self, given: QuantizedRows, out: torch.Tensor) -> None:
        # With per-row scales GPUs support bfloat16 outputs only.
        kind = torch.bfloat16 if out.is_cuda else out.dtype
        fits = out.dtype == kind and out.is_contiguous()
        made = out if fits else torch.empty(out.shape, dtype=kind, device=out.device)
        torch._scaled_mm(
            given.codes,
            self._codes,
            scale_a=given.scales,
            scale_b=self._scales,
            out_dtype=kind,
            use_fast_accum=True,
            out=made,
        )
        if not fits:
            out.copy_(made)
        if self._bias is not None:
            out.add_(self._bias)


class BlockLinear(RoundedLinear):
    """Fp8 product with per-block weight scales and per-group activation scales.

    Args:
        weight: the matrix.
        bias: float, shape ``[rows]``.
        kernels: of the device.
        dtype: of outputs.
        room: scratch memory, reserved for the matrix.
    """

    __slots__ = ("_room", "_weight")

    def __init__(
        self,
        weight: Blocks,
        bias: torch.Tensor | None,
        kernels: Kernels,
        dtype: torch.dtype,
        room: DequantizeScratch,
    ) -> None:
        super().__init__(weight.codes.dtype, GROUP, weight.rows, bias, kernels, dtype)
        self._weight = weight
        self._room = room

    @property
    def nbytes(self) -> int:
        """See ``LinearOp``."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    @torch.no_grad()
    def compile(self) -> None:
        """Compile all kernels that a step with any number of rows may launch."""
        device = self._weight.codes.device
        x = torch.zeros((1, self._weight.columns), dtype=self._dtype, device=device)
        out = torch.empty((1, self._rows), dtype=self._dtype, device=device)
        given = self._rounded(x)
        self._kernels.block_mm_tiles(given, self._weight, self._bias, self._room, out)

    def _multiply(self, given: QuantizedRows, out: torch.Tensor) -> None:
        self._kernels.block_mm(given, self._weight, self._bias, self._room, out)
