"""Matrices of a layer's experts in one tensor, for a device that multiplies all of them at once.

Each is written to its place as soon as it is read: beside the stack there is never more than one.
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
from gatewayd_engine.model.linears.select_gpu import multiplies_floats, row_product
from gatewayd_engine.model.weights import dense
from gatewayd_hooks.quantization import GroupedWeight, SparseWeight, StaticWeight

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels
    from gatewayd_engine.kernels.quantized.base import QuantizedRows
    from gatewayd_hooks.quantization import Weight

_log = logging.getLogger(__name__)

_FACTORS = ("scales", "offsets")
"""Tensors that are kept in float16 where that is exact, which may differ from expert to expert."""


class Stack:
    """One matrix of each expert of a layer.

    Args:
        first: the form that all must have.
        experts: how many there are.
        rows: numbers of an output.
        columns: numbers of an input.
        kernels: of the device.
    """

    __slots__ = ("_all", "_experts", "_kernels", "_kind", "_matrices", "_shape", "_tensors")

    def __init__(
        self, first: Form, experts: int, rows: int, columns: int, kernels: Kernels
    ) -> None:
        self._experts = experts
        self._shape = (rows, columns)
        self._kernels = kernels
        self._tensors = {
            name: tensor.new_empty((experts, *tensor.shape))
            for name, tensor in tensors_of(first).items()
        }
        # Not the matrix itself, which would stay.
        self._all = with_tensors(first, self._tensors)
        self._kind = _kind(one_of(self._all, 0))
        self._matrices: ExpertMatrices | None = None

    @property
    def nbytes(self) -> int:
        """What its numbers take."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    @property
    def kind(self) -> tuple[object, ...]:
        """What kernels are compiled for: all but the numbers."""
        factors = [self._tensors[name].dtype for name in _FACTORS if name in self._tensors]
        return (*self._kind, *factors)

    def put(self, number: int, form: Form) -> bool:
        """Write an expert's matrix to its place; False if it is of another form than the first."""
        if _kind(form) != self._kind:
            return False
        for name, tensor in tensors_of(form).items():
            into = self._tensors[name]
            if name in _FACTORS and into.dtype == torch.float16 != tensor.dtype:
                self._tensors[name] = into = into.float()
                self._all = with_tensors(self._all, self._tensors)
            into[number] = tensor
        return True

    @property
    def matrices(self) -> ExpertMatrices:
        """All of them, once each has been put."""
        if self._matrices is None:
            one = one_of(self._all, 0)
            self._matrices = ExpertMatrices(self._all, one, self._experts, *self._shape)
        return self._matrices

    def given(self, x: torch.Tensor) -> torch.Tensor | QuantizedRows:
        """What the matrices are multiplied with, for ``[n, columns]``."""
        if isinstance(self._all, RowCodes):
            return self._kernels.quantise(x, self._all.codes.dtype)
        if isinstance(self._all, Blocks):
            return self._kernels.quantise(x, self._all.codes.dtype, GROUP)
        return x


def form_of(weight: Weight, dtype: torch.dtype) -> Form | None:
    """How kernels of experts read a weight on its device; None if they cannot.

    Args:
        weight: of floats of type ``dtype``, or of few bits.
        dtype: of activations.
    """
    if isinstance(weight, torch.Tensor):
        return weight
    if not isinstance(weight, GroupedWeight):
        return None
    if row_product(weight) is not None:
        return RowCodes(weight.codes.contiguous(), weight.scales.reshape(-1))
    in_blocks = blocks(weight) if multiplies_floats(weight.codes) else None
    if in_blocks is not None:
        return in_blocks
    packed = pack(weight)
    if packed is None:
        _log.info("experts whose codes no kernel reads are made dense")
        return dense(weight).to(dtype)
    return packed


def told(weight: Weight) -> str:
    """What a weight is that kernels of experts cannot read, in a few words for the log."""
    if isinstance(weight, SparseWeight):
        return "half of zeros"
    return "given one scale for their inputs" if isinstance(weight, StaticWeight) else "a plugin's"


def _kind(form: Form) -> tuple[object, ...]:
    """All of a form but its numbers, and the type of its factors."""
    told = [
        (name, tensor.shape, None if name in _FACTORS else tensor.dtype)
        for name, tensor in tensors_of(form).items()
    ]
    rest = () if isinstance(form, torch.Tensor) else form
    return (type(form), *told, *(each for each in rest if not isinstance(each, torch.Tensor)))
