"""The kernels around products: by themselves in turn and early, and within products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.quantized.base import Activation
from tests.engine.kernels.checks import columns, mixed_columns
from tests.gpu.probing.bench import TWIN, Bench
from tests.gpu.probing.trial import Tensors, Trial

_EPS = 1e-5


def small(bench: Bench) -> None:
    """Norm, gate, rotation, inputs and tokens of a decode step."""
    for lines in bench.batches:
        with bench.at("small kernels", lines=lines):
            _around_products(bench, lines)
            _gather(bench, lines)
            _sample(bench, lines)


def _around_products(bench: Bench, lines: int) -> None:
    sizes = bench.sizes
    weight = torch.rand(sizes.hidden, device=bench.device)
    x, delta = bench.randn(lines, sizes.hidden), bench.randn(lines, sizes.hidden)

    def norm(kernels: Kernels) -> Tensors:
        stream = x.clone()
        return kernels.add_rms_norm(stream, delta, weight, _EPS), stream

    bench.kernel("norm and add", norm, lambda k: k.add_rms_norm(x, delta, weight, _EPS))

    gate_up = bench.randn(lines, 2 * sizes.intermediate)
    bench.kernel("gate", lambda k: (k.gated(gate_up, "silu"),), lambda k: k.gated(gate_up, "silu"))

    qkv = bench.randn(lines, sizes.heads + 2 * sizes.kv_heads, sizes.dim)
    table = torch.rand(sizes.max_len, sizes.dim, device=bench.device)
    at = torch.arange(lines, device=bench.device)
    shape = (lines, sizes.layers, 2, sizes.page, sizes.kv_heads, sizes.dim)
    pool = torch.zeros(shape, dtype=sizes.dtype, device=bench.device)
    write, layer = at * sizes.page, sizes.layers - 1

    def rope(kernels: Kernels) -> Tensors:
        heads, pages = qkv.clone(), pool.clone()
        kernels.rope_append(heads, table, at, write, pages, layer, sizes.heads)
        return heads, pages

    bench.kernel(
        "rope and append",
        rope,
        lambda k: k.rope_append(qkv, table, at, write, pool, layer, sizes.heads),
    )


def _gather(bench: Bench, lines: int) -> None:
    sizes, device = bench.sizes, bench.device
    most = -(-sizes.max_len // sizes.page)
    each = most // 2
    rows = torch.arange(lines, dtype=torch.int32, device=device)
    upto = torch.arange(lines + 1, dtype=torch.int32, device=device)
    starts = torch.full_like(rows, each * sizes.page - 1)
    given = torch.full_like(rows, -1)
    last = bench.ints(lines, high=sizes.vocab)
    block_table = bench.ints(lines, most, high=1 << 20)
    ids, positions, write = torch.empty(3, lines, dtype=torch.int64, device=device)
    pages = torch.empty(lines * each, dtype=torch.int32, device=device)

    def launch(kernels: Kernels) -> None:
        kernels.gather(
            rows, upto, upto * each, starts, given, last, block_table, sizes.page, 1,
            ids, positions, write, pages,
        )  # fmt: skip

    def compute(kernels: Kernels) -> Tensors:
        launch(kernels)
        return ids.clone(), positions.clone(), write.clone(), pages.clone()

    bench.kernel("gather", compute, launch)


def _sample(bench: Bench, lines: int) -> None:
    """The kernel leaves the step's answers and the rows' last tokens, too."""
    sizes, device = bench.sizes, bench.device
    logits = bench.randn(lines, sizes.vocab, scale=3.0)
    rows = torch.arange(lines, dtype=torch.int32, device=device)
    chosen = torch.empty(2, lines, dtype=torch.int32, device=device)
    last = torch.empty_like(rows)
    greedy = columns(device, lines, temperature=[0.0] * lines)
    for name, table in (("greedy", greedy), ("filtered", mixed_columns(device, lines))):

        def launch(kernels: Kernels, table: object = table) -> None:
            kernels.sample(logits, rows, rows, table, chosen, last)  # type: ignore[arg-type]

        def compute(kernels: Kernels, launch: Callable[[Kernels], None] = launch) -> Tensors:
            launch(kernels)
            return chosen[0].clone(), chosen[1].view(torch.float32).clone(), last.clone()

        bench.kernel(f"sample {name}", compute, launch, 2 * logits.numel())


def fused(bench: Bench) -> None:
    """Norm, product and gate in one launch, beside each by itself."""
    shapes: dict[str, tuple[int, int, Activation | None]] = {
        "norm, qkv": (*bench.sizes.matrices["qkv"], None),
        "norm, gate_up, gate": (*bench.sizes.matrices["gate_up"], "silu"),
    }
    for name, (rows, size, act) in shapes.items():
        matrices, rounds = bench.copies(rows, size)
        for lines in bench.sizes.fused:
            with bench.at(name, lines=lines):
                layer = _Layer(bench, lines, matrices, rounds, act)
                bench.both("fused", layer.fused)
                bench.both("apart", layer.apart)


class _Layer:
    """A norm, a product, and perhaps a gate."""

    def __init__(
        self,
        bench: Bench,
        lines: int,
        matrices: list[torch.Tensor],
        rounds: int,
        act: Activation | None,
    ) -> None:
        rows, size = matrices[0].shape
        self._matrices, self._rounds, self._act = matrices, rounds, act
        self._x = bench.randn(lines, size)
        self._scale = torch.rand(size, device=bench.device) + 0.5
        self._out = bench.randn(lines, rows if act is None else rows // 2)
        self._wide = bench.randn(lines, rows)

    def _wanted(self) -> Tensors:
        out = torch.empty_like(self._out)
        TWIN.norm_mm(self._x, self._scale, _EPS, self._matrices[0], None, self._act, out)
        return (out,)

    def _trial(self, launch: Callable[[torch.Tensor], torch.Tensor]) -> Trial:
        calls = [partial(launch, matrix) for matrix in self._matrices] * self._rounds
        read = self._matrices[0].nbytes
        return Trial(calls, lambda: (launch(self._matrices[0]).clone(),), self._wanted, read)

    def fused(self, kernels: Kernels) -> Trial:
        """All in one launch."""

        def launch(matrix: torch.Tensor) -> torch.Tensor:
            kernels.norm_mm(self._x, self._scale, _EPS, matrix, None, self._act, self._out)
            return self._out

        return self._trial(launch)

    def apart(self, kernels: Kernels) -> Trial:
        """One after the other, with torch's product."""

        def launch(matrix: torch.Tensor) -> torch.Tensor:
            normed = kernels.add_rms_norm(self._x, None, self._scale, _EPS)
            torch.mm(normed, matrix.t(), out=self._wide)
            return self._wide if self._act is None else kernels.gated(self._wide, self._act)

        return self._trial(launch)
