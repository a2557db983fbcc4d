"""Sums of products of codes and rounded activations, by a processor's integer instructions.

Sums of a span are exact: at most 32 products of magnitudes up to 255 and 127.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llvmlite import ir

from gatewayd_engine.kernels.cpu.panel_layout import CodeLayout
from gatewayd_engine.kernels.llvm.builder import (
    I8,
    I16,
    I32,
    KernelFunction,
    LocalVariable,
    Pointer,
    Value,
)
from gatewayd_engine.kernels.llvm.processor import Processor

_MOST_16_BITS = (1 << 15) - 1
_LARGEST = 127
_UNROLLED = {2: 2, 4: 2}
"""Units of an iteration, by the inputs of a unit."""
_LOW_HALVES = 0x0F0F0F0F
_PAIRS = 0x30303030
"""Bits 4 and 5 of each byte."""


@dataclass(frozen=True, slots=True)
class SpanOperands:
    """Operands of a tile for some inputs, whose products are added as integers.

    Attributes:
        weights: codes of each panel.
        rows: rounded activations of each row.
        sums: sums of codes of each row, int32; read where stored codes have another zero.
    """

    weights: Sequence[Pointer]
    rows: Sequence[Pointer]
    sums: Sequence[Value]


def add_span(
    f: KernelFunction, processor: Processor, layout: CodeLayout, size: int, span: SpanOperands
) -> list[list[list[Value]]]:
    """Return sums by panel, row and half of the panel: int32, ``lanes`` outputs each."""
    return _Tile(f, processor, layout, size, span).sums()


class _Tile:
    """A tile's sums under construction."""

    def __init__(
        self,
        f: KernelFunction,
        processor: Processor,
        layout: CodeLayout,
        size: int,
        span: SpanOperands,
    ) -> None:
        self._f, self._processor, self._layout, self._span = f, processor, layout, span
        self._size, self._lanes = size, processor.lanes
        lanes = processor.lanes
        self._words = ir.VectorType(I32, lanes)
        self._halfwords = ir.VectorType(I16, 2 * lanes)
        self._bytes = ir.VectorType(I8, 4 * lanes)
        self._adds_halfwords = processor.dots == "madd" and layout.bits < 8
        most = _MOST_16_BITS // (2 * ((1 << layout.bits) - 1) * _LARGEST)
        # Whether 16 bits hold the sums of the whole span.
        self._is_narrow = self._adds_halfwords and most * layout.adjacent >= size
        starts = [self._start(total) for total in span.sums]
        self._made = [
            [[f.variable(start), f.variable(start)] for start in starts] for _ in span.weights
        ]

    def _start(self, total: Value) -> Value:
        """Return what the sums of a row begin with: what its activations add to zeros is taken off.

        Each half of a sum in 16 bits has half of that: together with its products, which may
        overflow on the way, it is at most ``size * zero * 127``.
        """
        f, zero = self._f, self._layout.zero
        if not self._is_narrow:
            return f.splat(total * -zero, self._lanes) if zero else f.repeated(self._words, 0)
        if not zero:
            return f.repeated(self._halfwords, 0)
        return f.splat(f.convert(total * -(zero // 2), "trunc", I16), 2 * self._lanes)

    def sums(self) -> list[list[list[Value]]]:
        """Add all inputs."""
        f, units = self._f, self._size // self._layout.inputs
        step = min(units, _UNROLLED.get(self._layout.inputs, 1))
        with f.loop(0, units, step) as first:
            for i in range(step):
                self._add_unit(first + i)
        return [
            [[self._whole_sum(each.get()) for each in sides] for sides in rows]
            for rows in self._made
        ]

    def _whole_sum(self, value: Value) -> Value:
        return self._widened(value) if self._is_narrow else value

    def _widened(self, value: Value) -> Value:
        """Add pairs of sums in 16 bits."""
        ones = self._f.repeated(self._halfwords, 1)
        return self._f.intrinsic(_PAIRS_OF[32 * self._lanes], self._words, value, ones)

    def _add_unit(self, unit: Value) -> None:
        layout = self._layout
        for panel in range(len(self._span.weights)):
            pending: list[Value] = []
            for number, codes in enumerate(self._codes(panel, unit)):
                first = unit * layout.inputs + number * layout.adjacent
                products = self._products(first, panel, codes)
                if self._adds_halfwords and not self._is_narrow:
                    # Two of them fit into 16 bits.
                    if not pending:
                        pending = products
                        continue
                    both = zip(pending, products, strict=True)
                    products = [self._widened(one + other) for one, other in both]
                    pending = []
                self._collect(panel, products)

    def _collect(self, panel: int, products: list[Value]) -> None:
        if self._layout.adjacent == 4 and not self._adds_halfwords:
            return  # the instruction has added them
        places = [side for row in self._made[panel] for side in row]
        for place, product in zip(places, products, strict=True):
            place.set(place.get() + product)

    def _codes(self, panel: int, unit: Value) -> Iterator[tuple[Value, Value]]:
        """Load a unit: codes of both halves of a panel, for some adjacent inputs each time."""
        layout, lanes = self._layout, self._lanes
        planes = {8: 1, 4: 1, 6: 3}[layout.bits]
        half = lanes * layout.adjacent
        at = self._span.weights[panel] + unit * planes * 2 * half
        if layout.bits == 8:
            yield self._whole(at), self._whole(at + half)
            return
        for plane in range(max(1, planes - 1)):
            for shift in (0, 4):
                pair = [self._nibbles(at + (2 * plane + side) * half, shift) for side in (0, 1)]
                if layout.bits == 6:
                    order = 2 * plane + shift // 4
                    pair = [
                        low | self._pairs(at + (4 + side) * half, order)
                        for side, low in enumerate(pair)
                    ]
                yield pair[0], pair[1]

    def _whole(self, at: Pointer) -> Value:
        f, lanes = self._f, self._lanes
        if self._layout.adjacent == 4:
            return at.cast(I32).vector(lanes)
        how = "zext" if self._layout.is_unsigned else "sext"
        return f.convert(at.vector(2 * lanes), how, self._halfwords)

    def _nibbles(self, at: Pointer, shift: int) -> Value:
        both = at.cast(I32).vector(self._lanes)
        return (both >> shift if shift else both) & _LOW_HALVES

    def _pairs(self, at: Pointer, order: int) -> Value:
        """Load the high bits of six for the ``order``-th inputs, where they belong."""
        packed = at.cast(I32).vector(self._lanes)
        shift = 4 - 2 * order
        return (packed << shift if shift >= 0 else packed >> -shift) & _PAIRS

    def _products(self, first: Value, panel: int, weights: tuple[Value, Value]) -> list[Value]:
        """Multiply codes with each row's activations from input ``first`` on."""
        f, made = self._f, []
        for number, row in enumerate(self._span.rows):
            at = row + first * self._layout.activation_bytes
            x = f.splat(at.cast(I32)[0], self._lanes)
            for codes, place in zip(weights, self._made[panel][number], strict=True):
                made.append(self._product(codes, x, place))
        return made

    def _product(self, codes: Value, x: Value, place: LocalVariable) -> Value:
        f, bits = self._f, 32 * self._lanes
        if self._layout.adjacent == 2:
            return f.intrinsic(_PAIRS_OF[bits], self._words, codes, f.bits_as(x, self._halfwords))
        operands = f.bits_as(codes, self._bytes), f.bits_as(x, self._bytes)
        if self._adds_halfwords:
            return f.intrinsic(_BYTES_OF[bits], self._halfwords, *operands)
        if self._processor.dots == "vnni":
            place.set(f.intrinsic(_VNNI, self._words, place.get(), *operands))
        else:
            place.set(f.intrinsic(_SDOT, self._words, place.get(), *operands))
        return place.get()


_PAIRS_OF = {256: "llvm.x86.avx2.pmadd.wd", 512: "llvm.x86.avx512.pmaddw.d.512"}
_BYTES_OF = {256: "llvm.x86.avx2.pmadd.ub.sw", 512: "llvm.x86.avx512.pmaddubs.w.512"}
_VNNI = "llvm.x86.avx512.vpdpbusd.512"
_SDOT = "llvm.aarch64.neon.sdot.v4i32.v16i8"
