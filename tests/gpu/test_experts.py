"""Experts on a GPU, at a model's sizes: as by the twin, and in a CUDA graph with other routing."""

from __future__ import annotations

import pytest
import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.select import choose
from gatewayd_engine.model.config.moe import Routing
from gatewayd_engine.model.layers import FeedForward
from gatewayd_engine.model.moe import MixtureOfExperts
from gatewayd_engine.model.parts import ExpertParts, FusedParts
from gatewayd_engine.model.router import Router
from tests.engine.kernels import expert_checks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

CUDA, HALF = torch.device("cuda"), torch.bfloat16
EXPERTS, TOP_K, HIDDEN, INNER = 32, 8, 2048, 768
"""Qwen3-30B-A3B's, of which a quarter of the experts."""


@pytest.fixture
def kernels() -> Kernels:
    return choose(CUDA)


@pytest.mark.parametrize("n", [1, 64, 1000])
@pytest.mark.parametrize("experts", [8, 128])
def test_tokens_are_routed(kernels: Kernels, n: int, experts: int) -> None:
    for dtype in (HALF, torch.float32):
        expert_checks.route(kernels, CUDA, n, experts, min(TOP_K, experts), dtype)


@pytest.mark.parametrize("kind", ["bfloat16", "e4m3 rows", "int8 rows", "blocks", "symmetric"])
@pytest.mark.parametrize("n", [1, 64, 600])
def test_experts_multiply_as_by_the_twin(kernels: Kernels, kind: str, n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    chosen = torch.rand(n, EXPERTS, generator=generator).argsort(1)[:, :TOP_K].contiguous()
    groups = 16 if kind == "symmetric" else 1
    expert_checks.experts(
        kernels, CUDA, chosen, kind, EXPERTS, HIDDEN, 256, groups=groups, dtype=HALF
    )


@torch.inference_mode()
def test_a_graph_follows_its_router(kernels: Kernels) -> None:
    """Against the loop that asks the host; at last all tokens visit the same experts."""
    parts, fused = ExpertParts(kernels), FusedParts(kernels)
    matrices = [
        torch.randn(EXPERTS, rows, columns, dtype=HALF, device=CUDA) * columns**-0.5
        for rows, columns in ((2 * INNER, HIDDEN), (HIDDEN, INNER))
    ]
    gate = torch.randn(EXPERTS, HIDDEN, dtype=HALF, device=CUDA) * HIDDEN**-0.5
    router = Router(fused.linear(gate, None, HALF), Routing(TOP_K))
    stacks = []
    for all_ in matrices:
        stack = parts.stack(all_[0], EXPERTS, *all_.shape[1:])
        assert all(stack.set_expert(number, each) for number, each in enumerate(all_))
        stacks.append(stack)
    gate_up, down = stacks
    layer = parts.mixture(router, gate_up, down, "silu", HALF)
    backs = [fused.linear(each, None, HALF) for each in matrices[1]]
    loop = MixtureOfExperts(
        router,
        [
            FeedForward(fused.linear(first, None, HALF), back, fused.gate("silu", back))
            for first, back in zip(matrices[0], backs, strict=True)
        ],
    )
    for n in (1, 48, 700):
        x = torch.randn(n, HIDDEN, dtype=HALF, device=CUDA)
        layer(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = layer(x)
        for step in range(3):
            x.copy_(torch.randn(n if step < 2 else 1, HIDDEN, device=CUDA))
            graph.replay()
            wanted = loop(x)
            scale = float(wanted.float().std())
            torch.testing.assert_close(out, wanted, rtol=2**-5, atol=2**-5 * scale)
