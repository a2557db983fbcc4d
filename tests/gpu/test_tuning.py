"""What competes with torch's products computes the same on a GPU, and the table says what won."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from gatewayd_engine.kernels.select import choose
from gatewayd_engine.model.linears.norm_gate_fusion import Fusion
from gatewayd_engine.model.linears.select_gpu import DenseGpuLinear
from gatewayd_engine.tuning.clock import GraphClock
from gatewayd_engine.tuning.machine import this_machine
from gatewayd_engine.tuning.matmul import choose_matmuls
from gatewayd_engine.tuning.matmul_candidates import installed, multiply
from gatewayd_engine.tuning.table import TuningTable
from tests.engine.kernels import checks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

CUDA = torch.device("cuda")
SHAPES = {"qkv": (6144, 4096), "out": (4096, 4096), "down": (4096, 14336)}
"""Of Llama 3.1 8B, rows and columns."""


@pytest.fixture(params=sorted(SHAPES))
def linear(request: pytest.FixtureRequest) -> Iterator[DenseGpuLinear]:
    rows, columns = SHAPES[request.param]
    weight = checks.random(rows, columns, dtype=torch.bfloat16, device=CUDA, scale=columns**-0.5)
    yield DenseGpuLinear(weight, None, choose(CUDA), Fusion())
    torch.cuda.empty_cache()


def test_products_that_were_chosen_are_captured_and_compute_the_same(
    linear: DenseGpuLinear, tmp_path: Path
) -> None:
    sizes, table = [1, 8, 24, 64, 256], TuningTable(this_machine(CUDA), tmp_path)
    candidates = installed(CUDA)
    choose_matmuls([linear], sizes, candidates, table, GraphClock(CUDA), print, 60.0)
    for entry in table.entries:
        print(entry)
    assert table.measured == (5 if candidates else 0)
    for lines in sizes:
        x = checks.random(lines, linear.matrix.shape[1], dtype=torch.bfloat16, device=CUDA)
        expected = x.new_empty(lines, len(linear.matrix))
        multiply(x, linear.matrix, None, expected)
        linear(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = linear(x)
        graph.replay()
        apart = (made.float() - expected.float()).norm(dim=1) / expected.float().norm(dim=1)
        assert apart.max().item() < 1e-2
    again = TuningTable(this_machine(CUDA), tmp_path)
    choose_matmuls([linear], sizes, candidates, again, GraphClock(CUDA), print, 60.0)
    assert again.measured == 0


@pytest.mark.parametrize("lines", [1, 16])
@pytest.mark.parametrize("act", [None, "silu"])
def test_a_fused_product_is_right_and_not_many_times_slower(lines: int, act: str | None) -> None:
    """Prints microseconds beside those of its parts."""
    kernels, rows, columns = choose(CUDA), 14336 if act else 6144, 4096
    checks.norm_mm(kernels, CUDA, torch.bfloat16, lines, columns, rows, act, False)  # type: ignore[arg-type]
    both = rows * (2 if act else 1)
    weights = [torch.randn(both, columns, device=CUDA, dtype=torch.bfloat16) for _ in range(6)]
    x = torch.randn(lines, columns, device=CUDA, dtype=torch.bfloat16)
    scale = torch.rand(columns, device=CUDA)
    out = x.new_empty(lines, rows)

    def fused(weight: torch.Tensor) -> None:
        kernels.norm_mm(x, scale, 1e-5, weight, None, act, out)  # type: ignore[arg-type]

    def apart(weight: torch.Tensor) -> None:
        made = torch.mm(kernels.add_rms_norm(x, None, scale, 1e-5), weight.t())
        if act:
            kernels.gated(made, act)  # type: ignore[arg-type]

    clock = GraphClock(CUDA)
    times = [clock([partial(way, weight) for weight in weights]) for way in (fused, apart)]
    print(f"{lines} lines, {act}: fused {times[0]:.1f} us, apart {times[1]:.1f} us")
    assert times[0] < 3 * times[1]
