"""Selection of the GPU linear layer for a weight, by its format, not by its quantizer."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast
from weakref import ref

import torch

from gatewayd_engine.kernels.quantized.block_scales import blocks
from gatewayd_engine.kernels.quantized.packing import pack
from gatewayd_engine.kernels.quantized.scratch import SharedScratch
from gatewayd_engine.model.layers import LinearOp
from gatewayd_engine.model.linears.int8 import MOST_COLUMNS
from gatewayd_engine.model.linears.norm_gate_fusion import FusedGate, FusedNorm, Fusion
from gatewayd_engine.model.linears.packed_gpu import GroupedLinear
from gatewayd_engine.model.linears.sparse24 import SparseLinear, fits_sparse24
from gatewayd_engine.model.linears.static_scales import StaticLinear
from gatewayd_engine.model.linears.w8a8_gpu import (
    BlockLinear,
    Fp8DeviceLinear,
    Int8DeviceLinear,
    RowLinear,
)
from gatewayd_engine.model.weights import dense
from gatewayd_hooks.quantization import GroupedWeight, SparseWeight, StaticWeight

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels
    from gatewayd_engine.kernels.quantized.base import Activation
    from gatewayd_engine.tuning.matmul_candidates import Launch
    from gatewayd_hooks.quantization import Weight

_log = logging.getLogger(__name__)

_INT8_SIDES = 8
_FP8_SIDES = 16
"""Multiples that both sides of a matrix must be of for the int8 and fp8 products."""
_HOPPER = 9
"""First compute capability with fp8 products that have per-row or per-block scales."""


class DeviceLinears:
    """Factory of one model's linear layers on a GPU; quantized ones share scratch memory.

    Args:
        kernels: of the device.
        scratch: scratch memory; None for one of its own.

    Attributes:
        fusion: at which batch sizes norms and gates are fused into float matrices.
    """

    def __init__(self, kernels: Kernels, scratch: SharedScratch | None = None) -> None:
        # Weak: the tuner must not hold matrices in memory that a model has discarded.
        self._dense: list[ref[DenseGpuLinear]] = []
        self.fusion = Fusion()
        self._kernels = kernels
        self._scratch = SharedScratch() if scratch is None else scratch
        self._compiled: set[tuple[int, int, int, bool]] = set()

    @property
    def dense(self) -> list[DenseGpuLinear]:
        """The float matrices still in use, whose kernels can be tuned."""
        return [linear for made in self._dense if (linear := made()) is not None]

    def make(self, weight: Weight, bias: torch.Tensor | None, dtype: torch.dtype) -> LinearOp:
        """Make the fastest linear layer that supports a weight's format.

        Args:
            weight: floats of ``dtype``, or quantized.
            bias: of ``dtype``.
            dtype: of activations.
        """
        if isinstance(weight, torch.Tensor):
            return self._dense_linear(weight, bias)
        if isinstance(weight, SparseWeight):
            values = weight.values
            return (
                SparseLinear(values, bias)
                if fits_sparse24(values)
                else self._dense_linear(values, bias)
            )
        if isinstance(weight, StaticWeight):
            return self._static(weight, bias, dtype)
        # By row, by block, packed, dequantized: the first that fits.
        rounds = row_linear_type(weight)
        if rounds is not None:
            return rounds(weight, bias, self._kernels, dtype)
        room = self._scratch.on(weight.codes.device, dtype)
        in_blocks = blocks(weight) if multiplies_floats(weight.codes) else None
        if in_blocks is not None:
            room.reserve_parts(in_blocks)
            linear = BlockLinear(in_blocks, bias, self._kernels, dtype, room)
            kind = (in_blocks.rows, in_blocks.columns, in_blocks.tall, bias is None)
            if kind not in self._compiled:
                # Tiles depend on the number of rows, and warm-up steps cover few of those.
                linear.compile()
                self._compiled.add(kind)
            return linear
        packed = pack(weight)
        if packed is None:
            _log.info("a matrix in a format without a GPU kernel is dequantized")
            return self._dense_linear(dense(weight).to(dtype), bias)
        room.reserve(packed)
        return GroupedLinear(packed, bias, self._kernels, room)

    def _dense_linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> DenseGpuLinear:
        made = DenseGpuLinear(weight, bias, self._kernels, self.fusion)
        self._dense.append(ref(made))
        return made

    def _static(
        self, weight: StaticWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> LinearOp:
        inner = weight.weight
        if isinstance(inner, GroupedWeight):
            # Both sides stay codes if a kernel multiplies them; else rounded inputs are floats.
            inner = inner._replace(activations=weight.activations)
            rounds = row_linear_type(inner)
            if rounds is not None:
                return rounds(inner, bias, self._kernels, dtype, weight.scale)
            inner = inner._replace(activations="float")
        return StaticLinear(self.make(inner, None, dtype), weight, bias)


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class DenseGpuLinear:
    """Float linear layer that defers residual additions to the next norm.

    Args:
        weight: shape ``[out, in]``.
        bias: shape ``[out]``.
        kernels: of the device.
        fusion: at which numbers of rows norms and gates are fused.

    Attributes:
        act: activation function of the gate that is its output's only consumer, to be fused; None
            if there is none.
        matrix: the weight.
        bias: the bias, or None.
        launches: tuned kernels that beat torch's product, by number of rows.
    """

    matrix: torch.Tensor
    bias: torch.Tensor | None
    _kernels: Kernels
    _fusion: Fusion
    act: Activation | None = None
    launches: dict[int, Launch] = field(default_factory=dict)
    _weight: torch.Tensor = field(init=False)
    rounds_inputs = False

    def __post_init__(self) -> None:
        self._weight = self.matrix.t()

    @property
    def nbytes(self) -> int:
        """See ``LinearOp``."""
        return self._weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def shares_storage(self, weight: torch.Tensor) -> bool:
        """Whether the matrix shares its memory with a weight, rather than being a copy."""
        # Storages, as a transposed view has a tensor object of its own.
        return self._weight.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr()

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``LinearOp``; applies the norm to a ``FusedNorm``."""
        if isinstance(x, FusedNorm):
            return self._fused(x, out)
        # Looked up at captures and in eager steps; replayed CUDA graphs bypass this code.
        launch = self.launches.get(x.shape[0]) if self.launches else None
        # Tuned kernels read raw pointers and were checked with contiguous operands.
        if launch is not None and x.is_contiguous() and (out is None or out.is_contiguous()):
            if out is None:
                out = x.new_empty(x.shape[0], self.matrix.shape[0])
            launch(x, self.matrix, self.bias, out)
            return out
        if self.bias is None:
            return torch.mm(x, self._weight, out=out)
        return torch.addmm(self.bias, x, self._weight, out=out)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        if onto.shape[0] in self._fusion.lines and self.bias is None:
            onto.addmm_(x, self._weight)  # the next norm is fused and cannot add
            return None
        return self(x)

    def _fused(self, stream: FusedNorm, out: torch.Tensor | None) -> torch.Tensor:
        """Apply norm, product and the gate if there is one; a ``FusedGate`` in that case."""
        x, scale, eps = stream
        if out is None:
            rows = self.matrix.shape[0] // (1 if self.act is None else 2)
            out = x.new_empty(x.shape[0], rows)
        self._kernels.norm_mm(x, scale, eps, self.matrix, self.bias, self.act, out)
        return out if self.act is None else cast("torch.Tensor", FusedGate(out))


def row_linear_type(weight: GroupedWeight) -> type[RowLinear] | None:
    """Return the class that multiplies a weight's codes with quantized inputs, if any."""
    if _is_for_integers(weight):
        return Int8DeviceLinear
    return Fp8DeviceLinear if _is_for_floats(weight) else None


def _is_for_integers(weight: GroupedWeight) -> bool:
    return (
        weight.activations == "int8"
        and weight.codes.dtype == torch.int8
        and weight.codes.shape[1] <= MOST_COLUMNS
        and _is_by_row(weight, _INT8_SIDES)
    )


def _is_for_floats(weight: GroupedWeight) -> bool:
    return (
        weight.activations == "e4m3"
        and weight.codes.dtype == torch.float8_e4m3fn
        and _is_by_row(weight, _FP8_SIDES)
        and multiplies_floats(weight.codes)
    )


def multiplies_floats(codes: torch.Tensor) -> bool:
    """Whether the device of the codes can multiply fp8; always for the CPU emulation."""
    return not codes.is_cuda or torch.cuda.get_device_capability(codes.device)[0] >= _HOPPER


def _is_by_row(weight: GroupedWeight, sides: int) -> bool:
    """Whether a weight has per-row scales and sides that are multiples of ``sides``."""
    return (
        weight.scales.shape[1] == 1
        and weight.offsets is None
        and weight.group_of is None
        and not any(size % sides for size in weight.codes.shape)
    )
