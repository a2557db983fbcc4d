"""Storage form of a matrix in compressed-tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from gatewayd_hooks.helpers.quantized import finite
from gatewayd_hooks.quantization import GroupedWeight, StaticWeight, Stored

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import Matrix, Weight

PACKED, INT, FLOAT = "pack-quantized", "int-quantized", "float-quantized"
_FLOATS = ("F32", "BF16", "F16")
_SCALARS = ((1,), ())
_ONE = tuple(Stored(dtype, shape) for shape in _SCALARS for dtype in _FLOATS)
_WORD = 32


@dataclass(frozen=True, slots=True)
class WeightForm:
    """Storage form of matrices.

    Attributes:
        format: ``PACKED``, ``INT`` or ``FLOAT``.
        bits: of a code, 4 or 8.
        is_symmetric: whether there are no zero points.
        rows: number of rows that share a scale; 0 for all.
        columns: the same for columns.
        is_indexed: whether ``weight_g_idx`` assigns columns to groups.
        inputs: quantization of activations; see ``GroupedWeight``.
        is_static: whether inputs have one static scale, ``input_scale``.
    """

    format: str
    bits: int
    is_symmetric: bool
    rows: int
    columns: int
    is_indexed: bool
    inputs: Literal["float", "int8", "e4m3"]
    is_static: bool = False

    def stored(self, matrix: Matrix) -> dict[str, tuple[Stored, ...]]:
        """Return the required tensors."""
        rows, columns = matrix.rows, matrix.columns
        shapes = self._scale_shapes(matrix)
        forms = {"weight_scale": tuple(Stored(d, shape) for shape in shapes for d in _FLOATS)}
        if not self.is_symmetric:
            forms["weight_zero_point"] = tuple(
                Stored("I32", (_words(rows, self.bits), shape[1]))
                if self._packs_zeros
                else Stored("I8", shape)
                for shape in shapes
            )
        if self.is_indexed:
            forms["weight_g_idx"] = (Stored("I32", (columns,)),)
        if self.is_static:
            forms["input_scale"] = _ONE
        if self.format == PACKED:
            forms["weight_shape"] = (Stored("I64", (2,)),)
            forms["weight_packed"] = (Stored("I32", (rows, _words(columns, self.bits))),)
        else:
            dtype = "F8_E4M3" if self.format == FLOAT else "I8"
            forms["weight"] = (Stored(dtype, (rows, columns)),)
        return forms

    def optional(self) -> dict[str, tuple[Stored, ...]]:
        """Return the optional tensors: scales of inputs, which are not used."""
        zeros = {"input_zero_point": tuple(Stored("I8", shape) for shape in _SCALARS)}
        return zeros if self.is_static else {"input_scale": _ONE, **zeros}

    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> Weight:
        """Return ``(code - zero) * scale``.

        Raises:
            ValueError: invalid numbers.
        """
        if not self.is_static or self.inputs == "float":
            return self._weight(matrix, take)
        scale = float(finite("input_scale", take("input_scale")))
        if scale <= 0:
            raise ValueError(f"input_scale is {scale}, and inputs are divided by it")
        return StaticWeight(self._weight(matrix, take), self.inputs, scale)

    def _weight(
        self, matrix: Matrix, take: Callable[[str], torch.Tensor]
    ) -> torch.Tensor | GroupedWeight:
        stored = take("weight_scale")
        scales = self._spread(matrix, finite("weight_scale", stored))
        group_of = self._group_of(matrix, scales.shape[1], take)
        zeros = None if self.is_symmetric else self._zeros(matrix, take)
        if self.format == PACKED:
            shape = take("weight_shape").tolist()
            if shape != [matrix.rows, matrix.columns]:
                raise ValueError(f"weight_shape is {shape}, not {[matrix.rows, matrix.columns]}")
            codes = _unpacked(take("weight_packed"), self.bits)[:, : matrix.columns].contiguous()
        else:
            codes = take("weight")
            # In e4m3 a NaN has all bits but the sign set.
            if self.format == FLOAT and bool((codes.view(torch.uint8) & 127 == 127).any()):
                raise ValueError("weight contains a NaN")
        made = GroupedWeight(codes, scales, None, self.bits, group_of)
        if zeros is None:
            return made._replace(activations=self.inputs)
        # With 16-bit scales the product of a zero point and a scale is exact in float32.
        if stored.dtype != torch.float32:
            return made._replace(offsets=-zeros.float() * scales)
        return _without_zeros(made, zeros)

    @property
    def _packs_zeros(self) -> bool:
        return self.format == PACKED and self.rows == 1

    def _scale_shapes(self, matrix: Matrix) -> tuple[tuple[int, ...], ...]:
        if not self.rows:
            return _SCALARS
        columns = -(-matrix.columns // self.columns) if self.columns else 1
        return ((-(-matrix.rows // self.rows), columns),)

    def _spread(self, matrix: Matrix, numbers: torch.Tensor) -> torch.Tensor:
        """Expand to one per row, ``[rows, groups]``."""
        if not self.rows:
            return numbers.reshape(1, 1).expand(matrix.rows, 1).contiguous()
        if self.rows == 1:
            return numbers
        return numbers.repeat_interleave(min(self.rows, matrix.rows), 0)[: matrix.rows].contiguous()

    def _zeros(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> torch.Tensor:
        zeros = take("weight_zero_point")
        if not self._packs_zeros:
            return self._spread(matrix, zeros)
        return _unpacked(zeros.t(), self.bits)[:, : matrix.rows].t().contiguous()

    def _group_of(
        self, matrix: Matrix, groups: int, take: Callable[[str], torch.Tensor]
    ) -> torch.Tensor | None:
        if self.is_indexed:
            index = take("weight_g_idx")
            wrong = ((index < 0) | (index >= groups)).nonzero()
            if len(wrong):
                at = int(wrong[0])
                raise ValueError(
                    f"weight_g_idx[{at}] is {int(index[at])}; there are {groups} groups"
                )
            return index
        # With a shorter last group the group of a column does not follow from their number.
        if groups == 1 or matrix.columns % self.columns == 0:
            return None
        return torch.arange(matrix.columns, dtype=torch.int32) // self.columns


def _without_zeros(weight: GroupedWeight, zeros: torch.Tensor) -> torch.Tensor | GroupedWeight:
    """Return the same without offsets, for float32 scales: offsets would round it twice."""
    columns = weight.codes.shape[1]
    group_of = weight.group_of
    if group_of is None:
        group_of = torch.arange(columns, dtype=torch.int32) // (columns // zeros.shape[1])
    index = group_of.long()
    # Differences of 4-bit codes fit in 8 bits, those of 8-bit codes do not.
    if weight.bits == 4:
        return weight._replace(codes=weight.codes - zeros[:, index], bits=8)
    return (weight.codes.float() - zeros[:, index].float()) * weight.scales[:, index]


def _words(codes: int, bits: int) -> int:
    return -(-codes * bits // _WORD)


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack words int32 ``[n, m]`` to codes int8 ``[n, m * 32 / bits]``, low bits first."""
    some = words.flatten().view(torch.uint8).view(len(words), -1)
    # Codes are stored with an offset of 2**(bits - 1); for 8 bits that is the top bit.
    if bits == 8:
        return (some ^ 128).view(torch.int8)
    return torch.stack((some & 15, some >> 4), -1).flatten(1).view(torch.int8) - 8
