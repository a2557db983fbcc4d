"""Formats of weights in panels: how kernels load them, as two vectors of float32 per input.

Codes are converted, scaled and shifted in registers, with the same roundings as ``model.weights``
has: a product equals, bit for bit, that of the dequantized weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from gatewayd_engine.kernels.cpu.panel_layout import PanelFormat
from gatewayd_engine.kernels.llvm.builder import (
    F16,
    F32,
    I8,
    I16,
    I32,
    KernelFunction,
    Pointer,
    Value,
)

Halves = tuple[Value, Value]


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """A group of inputs of a panel.

    Attributes:
        weights: of the first input.
        scales, offsets: of the panel's outputs; None for none.
    """

    weights: Pointer
    scales: Halves | None
    offsets: Halves | None


def open_group(f: KernelFunction, form: PanelFormat, group: Pointer, lanes: int) -> WeightGroup:
    """Load what all inputs of a group share; ``group`` is its first byte."""
    numbers = [_factors(f, form, group, i, lanes) for i in range(2 * form.num_factors)]
    scales = (numbers[0], numbers[1]) if form.num_factors else None
    offsets = (numbers[2], numbers[3]) if form.num_factors > 1 else None
    return WeightGroup(group + form.header_bytes(lanes), scales, offsets)


def open_nested(
    f: KernelFunction, form: PanelFormat, nest: Pointer, group: Pointer, lanes: int
) -> WeightGroup:
    """Load a group's factors, which are multiples of those at ``nest``."""
    numbers = []
    for i in range(2 * form.num_factors):
        whole = f.convert(group.vector(lanes, i * lanes), "sext", _words(lanes))
        multiple = f.convert(whole, "sitofp", _floats(lanes))
        numbers.append(multiple * nest.cast(F32).vector(lanes, i * lanes))
    offsets = (numbers[2], numbers[3]) if form.num_factors > 1 else None
    return WeightGroup(group + form.header_bytes(lanes), (numbers[0], numbers[1]), offsets)


def _factors(f: KernelFunction, form: PanelFormat, group: Pointer, index: int, lanes: int) -> Value:
    """Load one of the vectors of a group's factors."""
    if form.factors == "f32":
        return group.cast(F32).vector(lanes, index * lanes)
    if form.factors == "f16":
        return f.convert(group.cast(F16).vector(lanes, index * lanes), "fpext", _floats(lanes))
    words = f.convert(group.cast(I16).vector(lanes, index * lanes), "zext", _words(lanes))
    return f.bits_as(words << 16, _floats(lanes))


def load(
    f: KernelFunction, form: PanelFormat, group: WeightGroup, step: Value, lanes: int
) -> Halves:
    """Load a panel's weights for the input ``step`` of a group."""
    at = group.weights + step * form.input_bytes(lanes)
    halves = _LOADS[form.codes](f, at, lanes)
    if group.scales is not None:
        halves = halves[0] * group.scales[0], halves[1] * group.scales[1]
    if group.offsets is not None:
        halves = halves[0] + group.offsets[0], halves[1] + group.offsets[1]
    return halves


def _floats(lanes: int) -> ir.Type:
    return ir.VectorType(F32, lanes)


def _words(lanes: int) -> ir.Type:
    return ir.VectorType(I32, lanes)


def _f32(f: KernelFunction, at: Pointer, lanes: int) -> Halves:
    numbers = at.cast(F32)
    return numbers.vector(lanes), numbers.vector(lanes, lanes)


def _bf16(f: KernelFunction, at: Pointer, lanes: int) -> Halves:
    pairs = at.cast(I32).vector(lanes)
    return f.bits_as(pairs << 16, _floats(lanes)), f.bits_as(pairs & -65536, _floats(lanes))


def _f16(f: KernelFunction, at: Pointer, lanes: int) -> Halves:
    numbers = at.cast(F16)
    low, high = numbers.vector(lanes), numbers.vector(lanes, lanes)
    return f.convert(low, "fpext", _floats(lanes)), f.convert(high, "fpext", _floats(lanes))


def _bytes(f: KernelFunction, at: Pointer, lanes: int, how: str) -> Halves:
    """Load bytes as whole numbers."""
    low, high = at.cast(I8).vector(lanes), at.cast(I8).vector(lanes, lanes)
    return f.convert(low, how, _words(lanes)), f.convert(high, how, _words(lanes))


def _as_floats(f: KernelFunction, halves: Halves) -> Halves:
    low, high = halves
    kind = _floats(low.ir.type.count)
    return f.convert(low, "sitofp", kind), f.convert(high, "sitofp", kind)


def _s8(f: KernelFunction, at: Pointer, lanes: int) -> Halves:
    return _as_floats(f, _bytes(f, at, lanes, "sext"))


def _u8(f: KernelFunction, at: Pointer, lanes: int) -> Halves:
    return _as_floats(f, _bytes(f, at, lanes, "zext"))


def _nibbles(f: KernelFunction, at: Pointer, lanes: int) -> Halves:
    """Load four bits: the low ones of a byte are of the first vector."""
    both = f.convert(at.cast(I8).vector(lanes), "zext", _words(lanes))
    return both & 15, both >> 4


def _u4(f: KernelFunction, at: Pointer, lanes: int) -> Halves:
    return _as_floats(f, _nibbles(f, at, lanes))


def _s4(f: KernelFunction, at: Pointer, lanes: int) -> Halves:
    low, high = _nibbles(f, at, lanes)
    return _as_floats(f, (low - 8, high - 8))


def _e4m3(f: KernelFunction, at: Pointer, lanes: int) -> Halves:
    def widened(codes: Value) -> Value:
        # Sign, exponent and fraction where float32 has them: 2**-120 times the value.
        bits = ((codes & 0x80) << 24) | ((codes & 0x7F) << 20)
        return f.bits_as(bits, _floats(lanes)) * 2.0**120

    low, high = _bytes(f, at, lanes, "zext")
    return widened(low), widened(high)


_LOADS: dict[str, Callable[[KernelFunction, Pointer, int], Halves]] = {
    "f32": _f32,
    "bf16": _bf16,
    "f16": _f16,
    "s8": _s8,
    "u8": _u8,
    "s4": _s4,
    "u4": _u4,
    "e4m3": _e4m3,
}
