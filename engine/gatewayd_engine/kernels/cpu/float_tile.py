"""Register tile of a matrix product with float activations."""

from __future__ import annotations

from llvmlite import ir

from gatewayd_engine.kernels.cpu.formats import load, open_group
from gatewayd_engine.kernels.cpu.panel_layout import PanelFormat
from gatewayd_engine.kernels.llvm.builder import F32, I8, I64, KernelFunction, Pointer
from gatewayd_engine.kernels.llvm.processor import Processor

_AHEAD = 4096
"""Bytes that weights are read ahead of their use."""


def add_float_tile(
    module: ir.Module, processor: Processor, form: PanelFormat, rows: int
) -> KernelFunction:
    """Add the sums of ``rows`` inputs with a number of adjacent panels: 1 or ``panels_at_once``."""
    lanes, several = processor.lanes, processor.panels_at_once(rows)
    kinds = [[F32], I64, [I8], I64, I64, I64, [F32], I64]
    f = KernelFunction(module, f"tile_{form.name}_{rows}", kinds)
    x, ldx, weights, stride, k, groups, sums, given = f.arguments
    inputs: list[Pointer] = [x + ldx * row for row in range(rows)]
    size = k // groups
    group_bytes = size * form.input_bytes(lanes) + form.header_bytes(lanes)
    for panels in {1, several}:
        with f.when(given.equals(panels)):
            accumulators = [
                [(f.variable(f.zeros(lanes)), f.variable(f.zeros(lanes))) for _ in range(panels)]
                for _ in inputs
            ]
            with f.loop(0, groups) as group:
                at = group * group_bytes
                opened = [
                    open_group(f, form, weights + (stride * i + at), lanes) for i in range(panels)
                ]
                with f.loop(0, size) as step:
                    if panels == 1:
                        # One stream at a time is read too late; of several, the processor sees
                        # more itself.
                        f.prefetch(opened[0].weights + (step * form.input_bytes(lanes) + _AHEAD))
                    for i, panel in enumerate(opened):
                        halves = load(f, form, panel, step, lanes)
                        for row, pairs in zip(inputs, accumulators, strict=True):
                            value = f.splat(row[group * size + step], lanes)
                            for half, total in zip(halves, pairs[i], strict=True):
                                total.set(f.fma(value, half, total.get()))
            for i in range(panels):
                for number, pairs in enumerate(accumulators):
                    for side, total in enumerate(pairs[i]):
                        sums.store(total.get(), ((i * rows + number) * 2 + side) * lanes)
    return f.finish()
