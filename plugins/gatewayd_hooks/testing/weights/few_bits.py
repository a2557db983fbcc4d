"""Values of quantized weights, and checks that every weight must pass, for tests of quantizers."""

from __future__ import annotations

import torch

from gatewayd_hooks.quantization import (
    GroupedWeight,
    Matrix,
    SparseWeight,
    StaticWeight,
    Stored,
    Weight,
)

STORED = [Matrix("model.layers.0.mlp.down_proj", *shape) for shape in ((128, 128), (256, 128))]
SHAPES = ((64, 64), (5, 256), (256, 5), (1, 128), (7, 1))
FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
INTEGERS = {
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
EIGHT_BITS = (torch.uint8, torch.int8)
FLOAT_ERROR = 2.0**-4
"""Relative rounding error of a float with a 3-bit mantissa."""
LEAST_FLOAT = 2.0**-18
"""Half of the smallest e4m3 number, relative to the largest."""


def random(stored: Stored, generator: torch.Generator) -> torch.Tensor:
    """Return random bits for integers, and for floats values of the magnitude of scales."""
    if stored.dtype in INTEGERS:
        dtype = INTEGERS[stored.dtype]
        bounds = torch.iinfo(dtype)
        return torch.randint(bounds.min, bounds.max, stored.shape, generator=generator, dtype=dtype)
    made = torch.rand(stored.shape, generator=generator) + 0.5
    return made.to(FLOATS[stored.dtype])


def normal(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
    """Return normally distributed weights, always the same."""
    generator = torch.Generator().manual_seed(rows * columns)
    return torch.randn((rows, columns), generator=generator) * scale


def dense(weight: Weight) -> torch.Tensor:
    """Return the values of a weight, element by element."""
    if isinstance(weight, torch.Tensor):
        return weight
    if isinstance(weight, SparseWeight):
        return weight.values
    if isinstance(weight, StaticWeight):
        return dense(weight.weight)
    scales, offsets = (spread(weight, each) for each in (weight.scales, weight.offsets))
    made = weight.codes.float() * scales
    return made if weight.offsets is None else made + offsets


def spread(weight: GroupedWeight, numbers: torch.Tensor | None) -> torch.Tensor:
    """Expand values per group to values per column."""
    if numbers is None:
        return torch.zeros(())
    columns = weight.codes.shape[1]
    groups = torch.arange(columns) // max(1, columns // numbers.shape[1])
    return numbers[:, groups if weight.group_of is None else weight.group_of.long()]


def check(weight: Weight, matrix: Matrix) -> None:
    """Check the invariants of a weight of a matrix."""
    shape = (matrix.rows, matrix.columns)
    if isinstance(weight, torch.Tensor):
        assert tuple(weight.shape) == shape
        assert weight.is_floating_point()
        return
    if isinstance(weight, SparseWeight):
        assert tuple(weight.values.shape) == shape
        assert weight.values.is_floating_point()
        filled = torch.unflatten(weight.values != 0, 1, (-1, 4)).sum(-1)
        assert int(filled.max()) <= 2, "at most two of four adjacent values may be nonzero"
        return
    if isinstance(weight, StaticWeight):
        assert weight.activations in ("int8", "e4m3")
        assert 0 < weight.scale < float("inf")
        check(weight.weight, matrix)
        return
    assert tuple(weight.codes.shape) == shape
    assert weight.codes.element_size() == 1, "a code must be a byte"
    groups = weight.scales.shape[1]
    for numbers in (weight.scales, weight.offsets):
        if numbers is not None:
            assert tuple(numbers.shape) == (matrix.rows, groups)
            assert numbers.dtype == torch.float32
            assert numbers.isfinite().all()
    if weight.group_of is None:
        assert matrix.columns % groups == 0, "groups of adjacent columns must have the same size"
    else:
        assert tuple(weight.group_of.shape) == (matrix.columns,)
        assert weight.group_of.dtype == torch.int32
        assert 0 <= int(weight.group_of.min()) <= int(weight.group_of.max()) < groups
    if weight.codes.dtype in EIGHT_BITS:
        half = 1 << (weight.bits - 1)
        least, most = (0, 2 * half - 1) if weight.codes.dtype == torch.uint8 else (-half, half - 1)
        assert least <= int(weight.codes.min()) <= int(weight.codes.max()) <= most


def equal(one: Weight, other: Weight) -> bool:
    """Whether two weights are the same, and of the same type."""
    if isinstance(one, StaticWeight) and isinstance(other, StaticWeight):
        return one[1:] == other[1:] and equal(one.weight, other.weight)
    if not (isinstance(one, GroupedWeight) and isinstance(other, GroupedWeight)):
        return type(one) is type(other) and torch.equal(dense(one), dense(other))
    # As bytes, which also tells apart NaN codes and the two zeros of floats.
    if not torch.equal(one.codes.view(torch.uint8), other.codes.view(torch.uint8)):
        return False
    return all(
        torch.equal(ours, theirs)
        if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor)
        else ours == theirs
        for ours, theirs in zip(one[1:], other[1:], strict=True)
    )
