"""Matrix product of rows with panels of weights: register tiles and what follows the sums.

``matmul_FORMAT`` computes some panels of ``x @ w.T``, so that threads share a product by panels.
The sums of a tile go to scratch memory in the first-level cache, from where an epilogue writes
them: stored, added to a residual stream, or gate times up.
"""

from __future__ import annotations

from llvmlite import ir

from gatewayd_engine.kernels.cpu.elementary import ACTIVATIONS
from gatewayd_engine.kernels.cpu.float_tile import add_float_tile
from gatewayd_engine.kernels.cpu.integer_tile import add_integer_tile
from gatewayd_engine.kernels.cpu.jobs import ADD, GATES, STORE, Job
from gatewayd_engine.kernels.cpu.panel_layout import (
    NEST,
    ROUNDED,
    PanelFormat,
    code_layout,
    rounded_bytes,
)
from gatewayd_engine.kernels.cpu.rounding import add_rounding
from gatewayd_engine.kernels.cpu.team_code import Phases
from gatewayd_engine.kernels.llvm.builder import F32, I8, I64, KernelFunction, Pointer, Value
from gatewayd_engine.kernels.llvm.processor import Processor

ROW_BLOCK_BYTES = 1 << 18
"""Inputs that are multiplied with a panel before the next one is read; they stay in the cache."""

_MOST_ROUNDED_ROWS = 8
"""Of a tile whose activations are rounded: its code is longer, and takes longer to compile."""

_SHARES = 4
"""Parts of a product for each thread: several, so that a thread that lost its processor does not
hold up the others with half of the product."""


def share(f: KernelFunction, panels: Value, threads: Value) -> Value:
    """Return how many panels a thread draws at a time: a multiple of what a tile computes."""
    return (f.most(panels // (threads * _SHARES), 1) + 3) // 4 * 4


def add_matmul(module: ir.Module, processor: Processor, form: PanelFormat) -> KernelFunction:
    """Add ``matmul_FORMAT`` to a module.

    Its arguments: inputs ``x`` with row stride ``ldx``, their number, panels, inputs ``K``, groups
    and outputs ``N`` of the matrix, bias or null, ``out`` with row stride ``ldo``, epilogue, first
    and end panel, scratch of ``row_tile * 8 * lanes`` numbers.
    """
    lanes, most = processor.lanes, processor.row_tile
    add_tile = add_float_tile
    if form.span:
        add_tile, most = add_integer_tile, min(most, _MOST_ROUNDED_ROWS)
    tiles = {n: add_tile(module, processor, form, n) for n in range(1, most + 1)}
    few = {n: panels for n in tiles if (panels := processor.panels_at_once(n)) > 1}
    epilogue = _add_epilogue(module, lanes)
    kinds = [[F32], I64, I64, [I8], I64, I64, I64, [F32], [F32], I64, I64, I64, I64, [F32]]
    f = KernelFunction(module, f"matmul_{form.name}", kinds, is_exported=True)
    x, ldx, rows, weights, k, groups, n, bias, out, ldo, kind, first, end, sums = f.arguments
    stride = groups * form.header_bytes(lanes) + k * form.input_bytes(lanes)
    if form.is_nested:
        stride = stride + k // NEST * form.nest_bytes(lanes)

    def compute(row: Value, size: int, panel: Value, panels: int) -> None:
        f.call(
            tiles[size],
            x + ldx * row,
            ldx,
            weights + panel * stride,
            stride,
            k,
            groups,
            sums,
            f.index(panels),
        )
        for i in range(panels):
            f.call(
                epilogue,
                sums + i * size * 2 * lanes,
                f.index(size),
                panel + i,
                n,
                bias,
                out + ldo * row,
                ldo,
                kind,
            )

    for number, together in few.items():
        with f.when(rows.equals(number)):
            whole = first + (end - first) // together * together
            with f.loop(first, whole, together) as panel:
                compute(f.index(0), number, panel, together)
            with f.loop(whole, end) as panel:
                compute(f.index(0), number, panel, 1)
    most_few = max(few, default=0)
    with f.when(rows > most_few):
        block = f.most(
            f.index(most), (f.index(ROW_BLOCK_BYTES // (2 if form.span else 4)) // k) // most * most
        )
        with f.loop(0, rows, block) as start:
            here = f.least(block, rows - start)
            # Tiles of nearly the same size: eight rows are four and four rather than six and two.
            count = (here + (most - 1)) // most
            size, larger = here // count, here % count
            with f.loop(first, end) as panel:
                row = f.variable(start)
                with f.loop(0, count) as i:
                    now = size + f.convert(i < larger, "zext", I64)
                    for each in tiles:
                        with f.when(now.equals(each)):
                            compute(row.get(), each, panel, 1)
                    row.set(row.get() + now)
    return f.finish()


def add_product(
    module: ir.Module, processor: Processor, form: PanelFormat, matmul: KernelFunction
) -> None:
    """Add ``product_FORMAT``, a job for a team that computes a whole product; see ``Job``.

    Where activations are rounded, it also adds ``round_FORMAT``; see ``rounding``.
    """
    rounding = None
    if form.span:
        layout = code_layout(form.codes, processor.dots)
        rounding = add_rounding(module, processor, form.name, layout)
    f = KernelFunction(module, f"product_{form.name}", [[I64], I64, I64], is_exported=True)
    given, thread, threads = f.arguments
    sums = given.pointer(Job.SUMS, F32) + thread * given[Job.SUMS_STRIDE]
    outputs, inputs, rows = given[Job.OUTPUTS], given[Job.INPUTS], given[Job.ROWS]
    x, ldx = given.pointer(Job.X, F32), given[Job.LDX]
    width = 2 * processor.lanes
    panels = (outputs + (width - 1)) // width
    size = share(f, panels, threads)
    phases = Phases(f, processor, given)
    if rounding is not None:
        rounded = given.pointer(Job.ROUNDED, F32)
        stride = inputs // ROUNDED * (rounded_bytes(ROUNDED, layout) // 4)
        with phases.parts(rows, 1) as (row, _):
            f.call(rounding, x + row * ldx, rounded + row * stride, inputs)
        x, ldx = rounded, stride
    with phases.parts(panels, size) as (first, end):
        f.call(
            matmul,
            *(x, ldx, rows, given.pointer(Job.WEIGHTS, I8), inputs, given[Job.GROUPS], outputs),
            *(given.pointer(Job.BIAS, F32), given.pointer(Job.OUT, F32), given[Job.LDO]),
            *(given[Job.EPILOGUE], first, end, sums),
        )
    f.finish()


def _add_epilogue(module: ir.Module, lanes: int) -> KernelFunction:
    """Add the epilogue of one panel: ``sums`` of ``rows`` rows to ``out``."""
    kinds = [[F32], I64, I64, I64, [F32], [F32], I64, I64]
    f = KernelFunction(module, "epilogue", kinds)
    sums, rows, panel, n, bias, out, ldo, kind = f.arguments
    width = 2 * lanes
    column: Value = panel * width
    has_bias = bias.is_set()
    with f.loop(0, rows) as row:
        halves = [f.variable(sums.vector(lanes, row * width + half * lanes)) for half in (0, 1)]
        with f.when(has_bias):
            for half, total in enumerate(halves):
                total.set(total.get() + bias.vector(lanes, column + half * lanes))
        low, high = (total.get() for total in halves)
        line = out + ldo * row
        with f.when(kind <= ADD):
            whole = column + width <= n
            with f.when(whole):
                for half, made in enumerate((low, high)):
                    at: Pointer = line + (column + half * lanes)
                    old = f.variable(f.zeros(lanes))
                    with f.when(kind.equals(ADD)):
                        old.set(at.vector(lanes))
                        at.store(old.get() + made)
                    with f.when(kind.equals(STORE)):
                        at.store(made)
            with f.when((column + width) > n):
                # The last panel of a matrix whose outputs do not fill it.
                for half, made in enumerate((low, high)):
                    sums.store(made, row * width + half * lanes)
                with f.loop(column, n) as output:
                    value = sums[row * width + (output - column)]
                    with f.when(kind.equals(ADD)):
                        line[output] = line[output] + value
                    with f.when(kind.equals(STORE)):
                        line[output] = value
        for name, number in GATES.items():
            with f.when(kind.equals(number)):
                line.store(ACTIVATIONS[name](f, low) * high, panel * lanes)
    return f.finish()
