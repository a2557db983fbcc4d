"""Benchmark: low-bit matmuls against bfloat16 on a GPU, at the sizes of a model's layers.

    python tests/bench/gemm.py [--rows 14336] [--columns 4096] [--kernel humming] [--json FILE]
        [--strict]

With ``--kernel`` the product of a plugin stands beside the engine's, wherever it takes the matrix.
For each number of lines: microseconds of each scheme, and how many times as fast as bfloat16. Each
is captured in a CUDA graph of many products over copies of the matrix, more bytes than the
device's cache holds, and replayed; schemes take turns, and the best of their rounds counts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from gatewayd_engine.kernels.quantized.block_scales import GROUP
from gatewayd_engine.kernels.select import choose
from gatewayd_engine.model.layers import LinearOp
from gatewayd_engine.model.linears.plugin_matmul import MatmulPlugin, MatmulPlugins
from gatewayd_engine.model.linears.select_gpu import DeviceLinears
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.quantization import GroupedWeight, QuantizerResources, SparseWeight, Weight
from gatewayd_hooks.strategy import Kind

_LINES = (1, 2, 4, 8, 16, 32, 48, 64, 128, 512)
_CACHE = 256 << 20
_ROUNDS = 20
_GOALS = {"w4a16": (2.5, range(1, 17)), "2:4": (1.2, range(512, 1025))}
"""By scheme: how many times as fast it has to be, at how many lines."""


class Row(NamedTuple):
    """What was measured of one scheme at one number of lines."""

    scheme: str
    lines: int
    microseconds: float
    speedup: float


def _int4(numbers: torch.Tensor) -> GroupedWeight:
    groups = torch.unflatten(numbers.float(), 1, (-1, 128))
    scales = (groups.abs().amax(-1) / 7).half().float()
    codes = (groups / scales.unsqueeze(-1)).round_().clamp_(-8, 7).to(torch.int8)
    return GroupedWeight(codes.flatten(1), scales, None, 4)


def _fp8(numbers: torch.Tensor) -> GroupedWeight:
    scales = numbers.float().abs().amax(1, keepdim=True) / 448
    return GroupedWeight(
        (numbers.float() / scales).to(torch.float8_e4m3fn), scales, activations="e4m3"
    )


def _blocks(numbers: torch.Tensor) -> GroupedWeight:
    """As DeepSeek's and Qwen's checkpoints of 8-bit floats have them."""
    tiles = torch.unflatten(torch.unflatten(numbers.float(), 1, (-1, GROUP)), 0, (-1, GROUP))
    largest = tiles.abs().amax((1, 3)) / 448
    scales = largest.repeat_interleave(GROUP, 0)
    codes = (torch.unflatten(numbers.float(), 1, (-1, GROUP)) / scales.unsqueeze(-1)).flatten(1)
    return GroupedWeight(codes.to(torch.float8_e4m3fn), scales, activations="e4m3")


def _sparse(numbers: torch.Tensor) -> Weight:
    values = numbers.clone()
    values[:, ::2] = 0.0
    return SparseWeight(values)


def _int8(numbers: torch.Tensor) -> GroupedWeight:
    scales = numbers.float().abs().amax(1, keepdim=True) / 127
    codes = (numbers.float() / scales).round_().to(torch.int8)
    return GroupedWeight(codes, scales, activations="int8")


GROUPED: dict[str, Callable[[torch.Tensor], GroupedWeight]] = {
    "w4a16": _int4,
    "fp8": _fp8,
    "fp8 blocks": _blocks,
    "int8": _int8,
}
SCHEMES: dict[str, Callable[[torch.Tensor], Weight]] = {
    "bf16": lambda numbers: numbers,
    **GROUPED,
    "2:4": _sparse,
}


def _captured(linears: list[LinearOp], x: torch.Tensor) -> torch.cuda.CUDAGraph:
    for linear in linears:
        linear(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for linear in linears:
            linear(x)
    return graph


def _seconds(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def measure(rows: int, columns: int, lines: int, schemes: dict[str, list[LinearOp]]) -> list[Row]:
    """Measure all schemes at one number of lines."""
    x = torch.randn(lines, columns, dtype=torch.bfloat16, device="cuda")
    graphs = {name: _captured(linears, x) for name, linears in schemes.items()}
    best = dict.fromkeys(graphs, float("inf"))
    for _ in range(_ROUNDS):
        for name, graph in graphs.items():
            best[name] = min(best[name], _seconds(graph) / len(schemes[name]))
    return [Row(name, lines, 1e6 * each, best["bf16"] / each) for name, each in best.items()]


WeightT = TypeVar("WeightT", bound=Weight)


def _copies(
    numbers: torch.Tensor,
    weigh: Callable[[torch.Tensor], WeightT],
    make: Callable[[WeightT, None, torch.dtype], LinearOp | None],
) -> list[LinearOp]:
    """Products of as many copies as no cache holds; none if there is none."""
    first = make(weigh(numbers.clone()), None, torch.bfloat16)
    made = [] if first is None else [first]
    for _ in range(0 if first is None else _CACHE // first.nbytes + 1):
        another = make(weigh(numbers.clone()), None, torch.bfloat16)
        made += [] if another is None else [another]
    return made


def _opened(name: str) -> MatmulPlugins:
    """A plugin that multiplies."""
    strategy = PluginHost(Catalog.installed()).strategy(Kind.QUANTIZER, name, {})
    strategy.open(QuantizerResources("", "cuda"))
    return MatmulPlugins([MatmulPlugin(name, strategy)])


def main() -> int:
    """Measure and print; with ``--strict``, 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=14336, help="a multiple of 128")
    parser.add_argument("--columns", type=int, default=4096, help="a multiple of 128")
    parser.add_argument("--kernel", action="append", default=[], help="a quantizer that multiplies")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU: nothing was measured", file=sys.stderr)
        return 2
    kernels = choose(torch.device("cuda"))
    numbers = torch.randn(options.rows, options.columns, dtype=torch.bfloat16, device="cuda")
    schemes: dict[str, list[LinearOp]] = {}
    for name, weigh in SCHEMES.items():
        schemes[name] = _copies(numbers, weigh, DeviceLinears(kernels).make)
    for kernel in options.kernel:
        bringers = _opened(kernel)
        for name, grouped in GROUPED.items():
            made = _copies(numbers, grouped, bringers.make)
            schemes |= {f"{name} {kernel}": made} if made else {}
    table: list[Row] = []
    with torch.inference_mode():
        for lines in _LINES:
            table += measure(options.rows, options.columns, lines, schemes)
            told = [
                f"{r.scheme} {r.microseconds:8.1f} us {r.speedup:5.2f}x"
                for r in table[-len(schemes) :]
            ]
            print(f"{lines:4d} lines: {' | '.join(told)}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([row._asdict() for row in table], indent=2) + "\n")
    missed = [
        row
        for row in table
        if row.scheme in _GOALS
        and row.lines in _GOALS[row.scheme][1]
        and row.speedup < _GOALS[row.scheme][0]
    ]
    for row in missed:
        print(f"missed: {row.scheme} at {row.lines} lines is {row.speedup:.2f} times as fast")
    return 1 if missed and options.strict else 0


if __name__ == "__main__":
    sys.exit(main())
