"""Benchmark: MoE layer time on a GPU by number of tokens, against the hardware limit.

    python -m tests.bench.experts [--experts 128] [--top-k 8] [--hidden 2048] [--inner 768]
        [--tokens 1,8,64] [--json FILE]

The sizes are Qwen3-30B-A3B's. Each layer is captured in a CUDA graph, its router and all, and given
other tokens before each replay; the median of the replays counts. In brackets stands the longer of
reading the matrices that are visited, and of multiplying with them in bfloat16. ``grouped_mm`` is
the same layer by torch's grouped product: a sorted copy of the tokens, two products and a gate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional

from gatewayd_engine.kernels.select import choose
from gatewayd_engine.model.config.moe import Routing
from gatewayd_engine.model.linears.expert_stacks import form_of
from gatewayd_engine.model.linears.select_gpu import DeviceLinears
from gatewayd_engine.model.parts import ExpertParts
from gatewayd_engine.model.router import Router
from tests.bench.gemm import GROUPED

_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 8192)
_ROUNDS = 30
_BYTES, _FLOPS = 3.97e12, 790e12
"""A second, of an H200: read, and of bfloat16."""
Layer = Callable[[torch.Tensor], torch.Tensor]


class Sizes(NamedTuple):
    """Of a layer."""

    experts: int
    top_k: int
    hidden: int
    inner: int


class Row(NamedTuple):
    """What was measured of one form at one number of tokens."""

    form: str
    tokens: int
    microseconds: float
    floor: float


def layers(sizes: Sizes) -> dict[str, tuple[Layer, int]]:
    """By form: the layer, and the bytes of one expert."""
    experts, top_k, hidden, inner = sizes
    kernels, half = choose(torch.device("cuda")), torch.bfloat16
    parts = ExpertParts(kernels)
    gate = torch.randn(experts, hidden, dtype=half, device="cuda") * hidden**-0.5
    router = Router(DeviceLinears(kernels).make(gate, None, half), Routing(top_k))
    shapes = ((2 * inner, hidden), (hidden, inner))
    floats = [torch.randn(experts, *s, dtype=half, device="cuda") * s[1] ** -0.5 for s in shapes]
    made: dict[str, tuple[Layer, int]] = {}
    for name, weigh in {"bf16": None, **GROUPED}.items():
        stacks = []
        for numbers, shape in zip(floats, shapes, strict=True):
            stack = None
            for number, each in enumerate(numbers):
                form = form_of(each if weigh is None else weigh(each), half)
                if form is None:
                    raise SystemExit(f"{name} has no kernel")
                stack = stack or parts.stack(form, experts, *shape)
                stack.set_expert(number, form)
            stacks += [] if stack is None else [stack]
        gate_up, down = stacks
        layer = parts.mixture(router, gate_up, down, "silu", half)
        made[name] = (layer, (gate_up.nbytes + down.nbytes) // experts)
    made["grouped_mm"] = (_by_torch(router, *floats), made["bf16"][1])
    return made


def _by_torch(router: Router, gate_up: torch.Tensor, down: torch.Tensor) -> Layer:
    each = torch.arange(len(gate_up), device=gate_up.device)

    def layer(x: torch.Tensor) -> torch.Tensor:
        weights, chosen = router(x)
        visited, order = chosen.flatten().sort(stable=True)
        ends = (visited.unsqueeze(1) <= each).sum(0, dtype=torch.int32)
        given = x[order // router.routing.top_k]
        gates, up = torch._grouped_mm(given, gate_up.mT, offs=ends).chunk(2, -1)
        inner = functional.silu(gates).mul_(up)
        answers = torch._grouped_mm(inner, down.mT, offs=ends)
        by_token = torch.empty_like(answers).index_copy_(0, order, answers)
        spread = torch.unflatten(by_token, 0, (-1, router.routing.top_k))
        return (spread * weights.unsqueeze(-1).to(x.dtype)).sum(1)

    return layer


def measure(form: str, layer: Layer, nbytes: int, sizes: Sizes, tokens: int) -> Row:
    """Measure one form at one number of tokens."""
    x = torch.randn(tokens, sizes.hidden, dtype=torch.bfloat16, device="cuda")
    layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(x)
    took = []
    for _ in range(_ROUNDS):
        x.normal_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        took.append(float(begin.elapsed_time(end)) * 1e3)
    # As if each token chose anew.
    visited = sizes.experts * (1 - (1 - sizes.top_k / sizes.experts) ** tokens)
    multiplied = 6 * tokens * sizes.top_k * sizes.hidden * sizes.inner
    floor = 1e6 * max(visited * nbytes / _BYTES, multiplied / _FLOPS)
    return Row(form, tokens, statistics.median(took), floor)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, size in zip(Sizes._fields, (128, 8, 2048, 768), strict=True):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    parser.add_argument("--tokens", default=",".join(map(str, _TOKENS)))
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU: nothing was measured", file=sys.stderr)
        return 2
    sizes = Sizes(options.experts, options.top_k, options.hidden, options.inner)
    table: list[Row] = []
    with torch.inference_mode():
        made = layers(sizes)
        for tokens in map(int, options.tokens.split(",")):
            rows = [measure(name, *layer, sizes, tokens) for name, layer in made.items()]
            told = [f"{r.form} {r.microseconds:7.1f} us ({r.floor:.1f})" for r in rows]
            print(f"{tokens:5d} tokens: {' | '.join(told)}", flush=True)
            table += rows
    if options.json is not None:
        options.json.write_text(json.dumps([row._asdict() for row in table], indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
