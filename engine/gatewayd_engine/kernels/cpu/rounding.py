"""Rounding of activations to 8-bit integers, with one scale for some adjacent ones.

The largest magnitude becomes 127, or 0 if all are below 2**-119. Numbers that are not finite make
their scale such a number, so that they reach all outputs of their row. Layout of the result:
``panel_layout.HEADER``.
"""

from __future__ import annotations

from llvmlite import ir

from gatewayd_engine.kernels.cpu.panel_layout import HEADER, ROUNDED, CodeLayout
from gatewayd_engine.kernels.llvm.builder import F32, I8, I32, I64, KernelFunction
from gatewayd_engine.kernels.llvm.processor import Processor
from gatewayd_engine.kernels.llvm.reductions import lane_sum, largest_lane

_LARGEST = 127
_LEAST = 2.0**-119
"""Below, the factor that makes 127 of the largest number would be infinite."""


def add_rounding(
    module: ir.Module, processor: Processor, name: str, layout: CodeLayout
) -> KernelFunction:
    """Add ``round_NAME(x, out, inputs)``: round a row, a multiple of ``ROUNDED`` numbers."""
    lanes, size = processor.lanes, layout.activation_bytes
    f = KernelFunction(module, f"round_{name}", [[F32], [I8], I64], is_exported=True)
    x, out, inputs = f.arguments
    words = ir.VectorType(I32, lanes)
    narrow = ir.VectorType(ir.IntType(8 * size), lanes)
    with f.loop(0, inputs // ROUNDED) as block:
        source = x + block * ROUNDED
        target = out + block * (HEADER + ROUNDED * size)
        numbers = [source.vector(lanes, at) for at in range(0, ROUNDED, lanes)]
        # As integers: bits of larger magnitudes are larger, and those of NaN are the largest.
        sizes = [f.bits_as(each, words) & 0x7FFFFFFF for each in numbers]
        most = sizes[0]
        for each in sizes[1:]:
            most = f.most(most, each)
        largest = f.bits_as(largest_lane(f, most), F32)
        scale = largest * (1.0 / _LARGEST)
        ratio = f.like(largest, float(_LARGEST)) / largest
        inverse = f.choose(largest > _LEAST, ratio, f.like(largest, 0.0))
        halves = [f.variable(f.like(sizes[0], 0)) for _ in (0, 1)]
        for i, each in enumerate(numbers):
            codes = f.saturated(f.overloaded("llvm.rint", each * f.splat(inverse, lanes)), words)
            half = halves[2 * i // len(numbers)]
            half.set(half.get() + codes)
            target.store(f.convert(codes, "trunc", narrow), HEADER + i * lanes * size)
        sums = [lane_sum(f, half.get()) for half in halves]
        target.cast(F32)[0] = scale
        for at, each in enumerate((sums[0] + sums[1], *sums), start=1):
            target.cast(I32)[at] = each
    return f.finish()
