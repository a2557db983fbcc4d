"""Register tile of a matrix product with activations that are rounded to 8-bit integers.

Products of a span of inputs are added as integers, then scaled and added as float32, span after
span: the bits of a row do not depend on others.
"""

from __future__ import annotations

from llvmlite import ir

from gatewayd_engine.kernels.cpu.dots import SpanOperands, add_span
from gatewayd_engine.kernels.cpu.formats import WeightGroup, open_group, open_nested
from gatewayd_engine.kernels.cpu.panel_layout import (
    HEADER,
    NEST,
    ROUNDED,
    PanelFormat,
    code_layout,
)
from gatewayd_engine.kernels.llvm.builder import F32, I8, I32, I64, KernelFunction, Pointer, Value
from gatewayd_engine.kernels.llvm.processor import Processor

_AHEAD = 2048
_LINE = 64
"""Bytes that weights are read ahead of their use, and of a cache line."""


def add_integer_tile(
    module: ir.Module, processor: Processor, form: PanelFormat, rows: int
) -> KernelFunction:
    """Add the sums of ``rows`` inputs with a number of adjacent panels: 1 or ``panels_at_once``.

    Its arguments are those of the float tile; ``x`` points to rounded activations.
    """
    several = processor.panels_at_once(rows)
    kinds = [[F32], I64, [I8], I64, I64, I64, [F32], I64]
    f = KernelFunction(module, f"tile_{form.name}_{rows}", kinds)
    tile = _Tile(f, processor, form, rows)
    for panels in {1, several}:
        with f.when(f.arguments[-1].equals(panels)):
            tile.emit(panels)
    return f.finish()


class _Tile:
    """The function under construction."""

    def __init__(
        self, f: KernelFunction, processor: Processor, form: PanelFormat, rows: int
    ) -> None:
        self.f, self.processor, self.form = f, processor, form
        self.lanes = processor.lanes
        self.layout = code_layout(form.codes, processor.dots)
        x, ldx, self.weights, self.stride, self.k, self.groups, self.totals, _ = f.arguments
        self.rows: list[Pointer] = [(x + ldx * row).cast(I8) for row in range(rows)]

    def emit(self, panels: int) -> None:
        """Emit the loops over nests, groups and spans of some panels."""
        f, form, lanes = self.f, self.form, self.lanes
        for at in range(panels * len(self.rows) * 2):
            self.totals.store(f.zeros(lanes), at * lanes)
        size = self.k // self.groups
        nests = self.k // NEST if form.is_nested else f.index(1)
        groups = self.groups // nests
        group_bytes = size * form.input_bytes(lanes) + form.header_bytes(lanes)
        nest_bytes = groups * group_bytes + form.nest_bytes(lanes)
        span_bytes = form.span * form.input_bytes(lanes)
        block_bytes = HEADER + ROUNDED * self.layout.activation_bytes
        with f.loop(0, nests) as nest, f.loop(0, groups) as group:
            starts = [self.weights + (self.stride * i + nest * nest_bytes) for i in range(panels)]
            headers = [start + (group * group_bytes + form.nest_bytes(lanes)) for start in starts]
            first = (nest * groups + group) * size
            with f.loop(0, size // form.span) as number:
                at = first + number * form.span
                codes = [
                    header + (number * span_bytes + form.header_bytes(lanes)) for header in headers
                ]
                blocks = [row + at // ROUNDED * block_bytes for row in self.rows]
                self._span(starts, headers, codes, blocks, at % ROUNDED)

    def _span(
        self,
        starts: list[Pointer],
        headers: list[Pointer],
        codes: list[Pointer],
        blocks: list[Pointer],
        within: Value,
    ) -> None:
        """Emit the products of a span with activations ``within`` a block."""
        f, form = self.f, self.form
        # The header has the sum of a block, and those of its halves.
        which = 1 if form.span == ROUNDED else within // form.span + 2
        sums = [block.cast(I32)[which] for block in blocks]
        rows = [block + (within * self.layout.activation_bytes + HEADER) for block in blocks]
        if len(codes) == 1:
            # One stream at a time is read too late; of several, the processor sees more itself.
            size = form.span * form.input_bytes(self.lanes) + form.header_bytes(self.lanes)
            for line in range(0, size, _LINE):
                f.prefetch(codes[0] + (_AHEAD + line))
        made = add_span(f, self.processor, self.layout, form.span, SpanOperands(codes, rows, sums))
        for i, (start, header) in enumerate(zip(starts, headers, strict=True)):
            # Loaded here: there are no registers for them before.
            if form.is_nested:
                factors = open_nested(f, form, start, header, self.lanes)
            else:
                factors = open_group(f, form, header, self.lanes)
            for number, block in enumerate(blocks):
                self._add(i * len(blocks) + number, made[i][number], factors, block, sums[number])

    def _add(
        self, at: int, made: list[Value], factors: WeightGroup, block: Pointer, total: Value
    ) -> None:
        """Add a row's sums to its totals."""
        f, lanes = self.f, self.lanes
        floats = ir.VectorType(F32, lanes)
        scale = block.cast(F32)[0]
        scales = f.splat(scale, lanes)
        for side in (0, 1):
            place = (at * 2 + side) * lanes
            scaled = f.convert(made[side], "sitofp", floats) * scales
            value = self.totals.vector(lanes, place)
            if factors.scales is not None:
                value = f.fma(scaled, factors.scales[side], value)
            if factors.offsets is not None:
                offset = f.splat(scale * f.convert(total, "sitofp", F32), lanes)
                value = f.fma(offset, factors.offsets[side], value)
            self.totals.store(value, place)
