"""Stacked matrices of a layer's experts, for grouped GPU products.

Each matrix is copied to its slice as soon as it is read, so that besides the stack no more than one
is in memory.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from gatewayd_engine.kernels.experts.base import (
    ExpertMatrices,
    Form,
    RowCodes,
    one_of,
    tensors_of,
    with_tensors,
)
from gatewayd_engine.kernels.quantized.block_scales import GROUP, Blocks, blocks
from gatewayd_engine.kernels.quantized.packing import pack
from gatewayd_engine.model.linears.select_gpu import multiplies_floats, row_linear_type
from gatewayd_engine.model.weights import dense
from gatewayd_hooks.quantization import GroupedWeight, SparseWeight, StaticWeight

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels
    from gatewayd_engine.kernels.quantized.base import QuantizedRows
    from gatewayd_hooks.quantization import Weight

_log = logging.getLogger(__name__)

_FACTORS = ("scales", "offsets")
"""Tensors that are float16 where that is exact, which may differ between experts."""


class Stack:
    """Stack of one matrix of each expert of a layer.

    Args:
        first: matrix in the form that all must have.
        experts: number of experts.
        rows: output features.
        columns: input features.
        kernels: of the device.

    Attributes:
        bias: biases of all experts, shape ``[experts, rows]``; None for none.
    """

    __slots__ = ("_all", "_experts", "_kernels", "_kind", "_matrices", "_shape", "_tensors", "bias")

    def __init__(
        self, first: Form, experts: int, rows: int, columns: int, kernels: Kernels
    ) -> None:
        self._experts = experts
        self._shape = (rows, columns)
        self._kernels = kernels
        self.bias: torch.Tensor | None = None
        self._tensors = {
            name: tensor.new_empty((experts, *tensor.shape))
            for name, tensor in tensors_of(first).items()
        }
        # Refer to the stacked tensors only: ``first`` must not stay in memory.
        self._all = with_tensors(first, self._tensors)
        self._kind = _kind(one_of(self._all, 0))
        self._matrices: ExpertMatrices | None = None

    @property
    def nbytes(self) -> int:
        """Size of the stack in bytes."""
        own = 0 if self.bias is None else self.bias.nbytes
        return own + sum(tensor.nbytes for tensor in self._tensors.values())

    @property
    def kind(self) -> tuple[object, ...]:
        """Key of the compiled kernel variant: format, shapes and dtypes."""
        factors = [self._tensors[name].dtype for name in _FACTORS if name in self._tensors]
        return (*self._kind, *factors, None if self.bias is None else self.bias.dtype)

    def set_expert(self, number: int, form: Form) -> bool:
        """Copy an expert's matrix into the stack; False if its form differs from the first's."""
        if _kind(form) != self._kind:
            return False
        for name, tensor in tensors_of(form).items():
            into = self._tensors[name]
            # Float16 must be exact for all experts: one that needs float32 widens the whole stack.
            if name in _FACTORS and into.dtype == torch.float16 != tensor.dtype:
                self._tensors[name] = into = into.float()
                self._all = with_tensors(self._all, self._tensors)
            into[number] = tensor
        return True

    @property
    def matrices(self) -> ExpertMatrices:
        """The stacked matrices; valid once every expert has been set."""
        # Not before all experts are set, as a widened stack replaces the tensors.
        if self._matrices is None:
            one = one_of(self._all, 0)
            self._matrices = ExpertMatrices(self._all, one, self._experts, *self._shape, self.bias)
        return self._matrices

    def prepare_input(self, x: torch.Tensor) -> torch.Tensor | QuantizedRows:
        """Quantize activations ``[n, columns]`` if the matrices are multiplied as codes."""
        if isinstance(self._all, RowCodes):
            return self._kernels.quantize(x, self._all.codes.dtype)
        if isinstance(self._all, Blocks):
            return self._kernels.quantize(x, self._all.codes.dtype, GROUP)
        return x


def form_of(weight: Weight, dtype: torch.dtype) -> Form | None:
    """Convert a weight to the form that grouped expert kernels read; None if there is none.

    Args:
        weight: floats of ``dtype``, or quantized.
        dtype: of activations.
    """
    if isinstance(weight, torch.Tensor):
        return weight
    if not isinstance(weight, GroupedWeight):
        return None
    if row_linear_type(weight) is not None:
        return RowCodes(weight.codes.contiguous(), weight.scales.reshape(-1))
    in_blocks = blocks(weight) if multiplies_floats(weight.codes) else None
    if in_blocks is not None:
        return in_blocks
    packed = pack(weight)
    if packed is None:
        _log.info("experts in a format without a GPU kernel are dequantized")
        return dense(weight).to(dtype)
    return packed


def describe_weight(weight: Weight) -> str:
    """Describe, for the log, a weight that grouped expert kernels cannot read."""
    if isinstance(weight, SparseWeight):
        return "2:4 sparse"
    if isinstance(weight, StaticWeight):
        return "quantized with static input scales"
    return "multiplied by plugins"


def _kind(form: Form) -> tuple[object, ...]:
    """Return the format, shapes and dtypes of a form, except the dtypes of its factors."""
    tensors = [
        (name, tensor.shape, None if name in _FACTORS else tensor.dtype)
        for name, tensor in tensors_of(form).items()
    ]
    # Bits, zero point and the like must agree, too: one kernel multiplies all experts.
    rest = () if isinstance(form, torch.Tensor) else form
    return (type(form), *tensors, *(each for each in rest if not isinstance(each, torch.Tensor)))
