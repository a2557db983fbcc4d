"""Operations on weights of any format: float, quantized, 2:4 sparse, with static input scales."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import cast

import torch

from gatewayd_hooks.quantization import (
    GroupedWeight,
    Matrix,
    SparseWeight,
    StaticWeight,
    Weight,
)

_log = logging.getLogger(__name__)

_NOT_FINITE = {torch.float8_e4m3fn: 0x7F, torch.float8_e5m2: 0x7C}
"""Smallest byte, without its sign bit, that encodes an infinity or a NaN."""
_CODES = (torch.uint8, torch.int8, *_NOT_FINITE)


def validated(matrix: Matrix, weight: Weight) -> Weight:
    """Return a plugin's weight unchanged after checking that it fits the matrix.

    Raises:
        ValueError: a shape, a dtype or a value is invalid.
    """
    shape = (matrix.rows, matrix.columns)
    if isinstance(weight, torch.Tensor):
        if tuple(weight.shape) != shape or not weight.is_floating_point():
            raise ValueError(f"the weight is {_describe(weight)}, not floats {list(shape)}")
        return weight
    if isinstance(weight, SparseWeight):
        validated(matrix, weight.values)
        if matrix.columns % 4 or not _is_half_zeros(weight.values):
            raise ValueError("more than two of four neighbours in a row are not zero")
        return weight
    if isinstance(weight, StaticWeight):
        validated(matrix, weight.weight)
        if weight.activations not in ("int8", "e4m3"):
            raise ValueError(f"its inputs cannot be rounded to {weight.activations!r}")
        # Inputs are divided by the scale: zero would make NaN of all of them.
        if not (math.isfinite(weight.scale) and weight.scale > 0):
            raise ValueError(
                f"the scale of its inputs is {weight.scale}, and they are divided by it"
            )
        return weight
    if tuple(weight.codes.shape) != shape or weight.codes.dtype not in _CODES:
        raise ValueError(f"the codes are {_describe(weight.codes)}, not bytes {list(shape)}")
    if not _are_codes(weight.codes, weight.bits):
        raise ValueError(f"its codes are not valid {weight.bits}-bit numbers")
    groups = weight.scales.shape[-1] if weight.scales.dim() == 2 else 0
    for name, numbers in (("scales", weight.scales), ("offsets", weight.offsets)):
        if numbers is None:
            continue
        if tuple(numbers.shape) != (matrix.rows, groups) or numbers.dtype != torch.float32:
            raise ValueError(
                f"the {name} are {_describe(numbers)}, not float32 [{matrix.rows}, groups]"
            )
        if not numbers.isfinite().all():
            raise ValueError(f"its {name} are not finite")
    if weight.group_of is None:
        if not groups or matrix.columns % groups:
            raise ValueError(f"{matrix.columns} columns cannot be in {groups} groups of neighbours")
    elif tuple(weight.group_of.shape) != (matrix.columns,) or not _are_below(
        weight.group_of, groups
    ):
        raise ValueError(f"group_of must give each of {matrix.columns} columns one of {groups}")
    return weight


def _is_half_zeros(values: torch.Tensor) -> bool:
    # A matrix may be large: sums of four need no more than a byte.
    filled = torch.unflatten(values != 0, 1, (-1, 4)).sum(-1, dtype=torch.int8)
    return not bool((filled > 2).any())


def _are_codes(codes: torch.Tensor, bits: int) -> bool:
    if codes.dtype in _NOT_FINITE:
        return bool((codes.view(torch.uint8) & 127).amax() < _NOT_FINITE[codes.dtype])
    if bits == 8:
        return True
    least, most = torch.aminmax(codes)
    half = 1 << (bits - 1)
    bounds = (0, 2 * half) if codes.dtype == torch.uint8 else (-half, half)
    return bounds[0] <= int(least) and int(most) < bounds[1]


def _are_below(index: torch.Tensor, count: int) -> bool:
    return index.dtype == torch.int32 and bool(((index >= 0) & (index < count)).all())


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def dense(weight: Weight) -> torch.Tensor:
    """Dequantize a weight, ``[rows, columns]``; float32 if it was quantized."""
    if isinstance(weight, torch.Tensor):
        return weight
    if isinstance(weight, SparseWeight):
        return weight.values
    if isinstance(weight, StaticWeight):
        return dense(weight.weight)
    # Scaled in place, so that there is one matrix of floats at a time.
    values = _floats(weight.codes)
    if weight.group_of is not None:
        index = weight.group_of.long()
        values *= weight.scales[:, index]
        return values if weight.offsets is None else values.add_(weight.offsets[:, index])
    # Multiplied, then added: a fused multiply-add would differ in bits from other implementations.
    groups = torch.unflatten(values, 1, (weight.scales.shape[1], -1))
    groups *= weight.scales.unsqueeze(-1)
    if weight.offsets is not None:
        groups += weight.offsets.unsqueeze(-1)
    return values


def _floats(codes: torch.Tensor) -> torch.Tensor:
    """Convert finite codes to float32."""
    if codes.dtype != torch.float8_e4m3fn:
        return codes.float()
    # The same bits read as bfloat16 are 2**-120 times the value, also of subnormal codes. Torch's
    # own cast gives the same result and takes twenty times as long.
    # The mask clears copies of the sign bit, which int16 brings into the exponent.
    bits = codes.view(torch.int8).to(torch.int16).bitwise_left_shift_(4).bitwise_and_(-0x7801)
    return bits.view(torch.bfloat16).float().mul_(2.0**120)


def device_of(weight: Weight) -> torch.device:
    """Return the device of a weight."""
    if isinstance(weight, StaticWeight):
        return device_of(weight.weight)
    # The first tensor of every other form.
    return weight.device if isinstance(weight, torch.Tensor) else weight[0].device


def to_device(weight: Weight, device: torch.device | str) -> Weight:
    """Move a weight to a device; tensors already there are not copied."""
    if isinstance(weight, torch.Tensor):
        return weight.to(device)
    if isinstance(weight, SparseWeight):
        return SparseWeight(weight.values.to(device))
    if isinstance(weight, StaticWeight):
        return _around(weight, to_device(weight.weight, device))
    offsets, group_of = weight.offsets, weight.group_of
    return weight._replace(
        codes=weight.codes.to(device),
        scales=weight.scales.to(device),
        offsets=None if offsets is None else offsets.to(device),
        group_of=None if group_of is None else group_of.to(device),
    )


def to_dtype(weight: Weight, dtype: torch.dtype) -> Weight:
    """Convert the values of an unquantized weight to a dtype; quantized ones are returned as is."""
    if isinstance(weight, torch.Tensor):
        return weight.to(dtype)
    if isinstance(weight, SparseWeight):
        return SparseWeight(weight.values.to(dtype))
    if isinstance(weight, StaticWeight):
        return _around(weight, to_dtype(weight.weight, dtype))
    return weight


def select_rows(weight: Weight, index: torch.Tensor) -> Weight:
    """Select rows of a weight by their indices, int64 ``[n]``, in that order."""
    if isinstance(weight, torch.Tensor):
        return weight[index]
    if isinstance(weight, SparseWeight):
        return SparseWeight(weight.values[index])
    if isinstance(weight, StaticWeight):
        return _around(weight, select_rows(weight.weight, index))
    return slice_rows(weight, index)


def slice_rows(weight: GroupedWeight, index: torch.Tensor | slice) -> GroupedWeight:
    """Select rows of a quantized weight; without a copy if ``index`` is a slice."""
    return weight._replace(
        codes=weight.codes[index],
        scales=weight.scales[index],
        offsets=None if weight.offsets is None else weight.offsets[index],
    )


def scale_rows(weight: Weight, factors: torch.Tensor) -> Weight:
    """Multiply rows by factors, float32 ``[rows]`` or a scalar; computed in at least float32."""
    column = factors.reshape(-1, 1)
    if isinstance(weight, torch.Tensor):
        kind = torch.promote_types(weight.dtype, torch.float32)
        return weight.to(kind) * column.to(weight.device)
    if isinstance(weight, SparseWeight):
        return SparseWeight(weight.values.float() * column.to(weight.values.device))
    if isinstance(weight, StaticWeight):
        return _around(weight, scale_rows(weight.weight, factors))
    column = column.to(weight.scales.device)
    offsets = weight.offsets
    return weight._replace(
        scales=weight.scales * column, offsets=None if offsets is None else offsets * column
    )


def concat_rows(weights: Sequence[Weight]) -> Weight:
    """Concatenate weights of the same input by rows; no number changes.

    Integer codes of several widths become bytes. Formats that cannot be joined are dequantized.
    """
    if len(weights) == 1:
        return weights[0]
    sparse = [weight.values for weight in weights if isinstance(weight, SparseWeight)]
    if len(sparse) == len(weights):
        return SparseWeight(torch.cat(sparse))
    static = [weight for weight in weights if isinstance(weight, StaticWeight)]
    if static:
        return _joined_static(weights, static)
    grouped = [weight for weight in weights if isinstance(weight, GroupedWeight)]
    alike = _in_one_format(grouped) if len(grouped) == len(weights) else None
    if alike is not None:
        # Splitting groups repeats scales and changes no number, unlike dequantizing.
        groups = max(weight.scales.shape[1] for weight in alike)
        if all(groups % weight.scales.shape[1] == 0 for weight in alike):
            return _joined([_finer(weight, groups) for weight in alike])
    if grouped:
        _log.info("matrices of one input with different quantization formats are dequantized")
    return torch.cat([dense(weight) for weight in weights])


def _joined_static(weights: Sequence[Weight], static: Sequence[StaticWeight]) -> Weight:
    """Concatenate weights of which some have a static input scale; see ``concat_rows``."""
    whole = concat_rows([w.weight if isinstance(w, StaticWeight) else w for w in weights])
    kinds = {weight.activations for weight in static}
    if len(static) < len(weights) or len(kinds) > 1 or isinstance(whole, SparseWeight):
        _log.info("matrices of one input have no common scale for it: static scales are not used")
        return whole
    # With the largest, no matrix has inputs clamped that its own scale would not clamp.
    largest = max(weight.scale for weight in static)
    return _around(static[0], whole)._replace(scale=largest)


def _around(static: StaticWeight, weight: Weight) -> StaticWeight:
    """Replace the matrix of a weight with static input scales by another of the same kind."""
    return static._replace(weight=cast("torch.Tensor | GroupedWeight", weight))


def _in_one_format(weights: Sequence[GroupedWeight]) -> list[GroupedWeight] | None:
    """Return the same weights with codes of one type; None if they have no common format.

    Their numbers of groups may still differ.
    """
    first = weights[0]
    for other in weights[1:]:
        if other.activations != first.activations or not _are_grouped_alike(first, other):
            return None
    if len({weight.codes.dtype for weight in weights}) == 1:
        bits = max(weight.bits for weight in weights)
        return [weight._replace(bits=bits) for weight in weights]
    if not all(_fits_int8(weight) for weight in weights):
        return None
    return [weight._replace(codes=weight.codes.view(torch.int8), bits=8) for weight in weights]


def _fits_int8(weight: GroupedWeight) -> bool:
    """Whether codes have the same values as int8."""
    is_below_128 = weight.codes.dtype == torch.uint8 and weight.bits < 8
    return is_below_128 or weight.codes.dtype == torch.int8


def _are_grouped_alike(one: GroupedWeight, other: GroupedWeight) -> bool:
    if one.group_of is None or other.group_of is None:
        # Both None, or one has adjacent groups and the other has not.
        return one.group_of is other.group_of
    is_same = one.scales.shape[1] == other.scales.shape[1]
    return is_same and torch.equal(one.group_of, other.group_of)


def _finer(weight: GroupedWeight, groups: int) -> GroupedWeight:
    """Split the groups of adjacent columns of a weight into smaller ones, ``groups`` in all."""
    times = groups // weight.scales.shape[1]
    if times == 1:
        return weight
    offsets = weight.offsets
    return weight._replace(
        scales=weight.scales.repeat_interleave(times, 1),
        offsets=None if offsets is None else offsets.repeat_interleave(times, 1),
    )


def _joined(weights: Sequence[GroupedWeight]) -> GroupedWeight:
    offsets = None
    if any(weight.offsets is not None for weight in weights):
        offsets = torch.cat(
            [torch.zeros_like(w.scales) if w.offsets is None else w.offsets for w in weights]
        )
    return weights[0]._replace(
        codes=torch.cat([weight.codes for weight in weights]),
        scales=torch.cat([weight.scales for weight in weights]),
        offsets=offsets,
    )
