"""What each kernel of an 8B decode step costs in a CUDA graph, beside others that do the same.

    make gpu-probe            about 2 minutes; or, where there is no make:
    . tests/gpu/kit/setup.sh; python3 tests/gpu/probe.py [BATCH,...] | tee out/probe.log

Matrix products: torch's choice, cuBLASLt's best of all that it proposes, tinygemm2 for few lines,
each over copies of a matrix that do not fit the chip's cache. Attention: FlashAttention 2 on tensor
cores, as the engine has it, and XQA, over slices of a block-major pool. Small kernels: the engine's
own. All in microseconds; for products and attention the memory's speed as well. Sums say where a
step's time goes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from gatewayd.bench.chips import CHIPS

BATCHES = (1, 8, 32, 64, 128, 256)
LAYERS, HEADS, KV_HEADS, DIM, PAGE = 32, 32, 8, 128, 16
HIDDEN, INTERMEDIATE, VOCAB = 4096, 14336, 128_256
SHAPES = {
    "qkv": ((HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
    "out": (HIDDEN, HEADS * DIM),
    "gate_up": (2 * INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
    "head": (VOCAB, HIDDEN),
}
"""Rows and columns of the 8B shape's matrices; all but the head are in each layer."""
CONTEXTS = (256, 1024)
UNCACHED = 512 << 20
"""Bytes of copies that are read one after the other."""
TINY_LINES = 64
DEVICE, HALF = "cuda", torch.bfloat16

Call = Callable[[], object]
T = TypeVar("T")


def graph_us(calls: Sequence[Call], rounds: int = 10) -> float:
    """The median time of one of some calls that are launched from a graph."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    found = []
    for _ in range(rounds + 2):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return float(sorted(found[2:])[rounds // 2])


def tried(name: str, make: Callable[[], T]) -> T | None:
    """What a call gives; what it raises is said, and no reason to stop."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001  a probe is there to see which of them work
        print(f"  {name}: {type(error).__name__}: {str(error)[:150]}", flush=True)
        return None


def blas_handle() -> int:
    """The one of the current stream."""
    return int(torch.cuda.current_blas_handle())  # type: ignore[no-untyped-call]


def copies_of(rows: int, columns: int) -> tuple[list[torch.Tensor], int]:
    """Copies of a matrix that do not fit the cache, and how often to go through them."""
    number = max(1, min(8, UNCACHED // (2 * rows * columns)))
    made = [
        torch.randn(rows, columns, device=DEVICE, dtype=HALF) * columns**-0.5 for _ in range(number)
    ]
    return made, 4 if rows == VOCAB else max(1, 24 // number)


class Product:
    """One product, ``x`` of some lines with a matrix, by everything that can make it.

    Args:
        lines: of ``x``.
        matrices: copies of the matrix, ``[rows, columns]``.
        rounds: how often to go through them.
        algorithms: FlashInfer's module of cuBLASLt, or None.
        tiny: FlashInfer's module for few lines, or None.
    """

    def __init__(
        self, lines: int, matrices: list[torch.Tensor], rounds: int, algorithms: Any, tiny: Any
    ) -> None:
        rows, columns = matrices[0].shape
        self.lines = lines
        self.matrices, self.rounds = matrices, rounds
        self.algorithms, self.tiny = algorithms, tiny
        self.x = torch.randn(lines, columns, device=DEVICE, dtype=HALF)
        self.out = torch.empty(lines, rows, device=DEVICE, dtype=HALF)
        self.wanted = self.x.float() @ matrices[0].float().t()

    def timed(self, run: Callable[[torch.Tensor], object], rounds: int = 10) -> float:
        """Microseconds of one product."""
        calls = [partial(run, matrix) for matrix in self.matrices]
        return graph_us(calls * self.rounds, rounds)

    def error(self, run: Callable[[torch.Tensor], object]) -> str:
        """How far from float32 it is."""
        run(self.matrices[0])
        return f"{float((self.out.float() - self.wanted).norm() / self.wanted.norm()):.0e}"

    def by_torch(self, library: str) -> float:
        """By the library that torch is told to prefer."""
        torch.backends.cuda.preferred_blas_library(library)
        try:
            return self.timed(lambda matrix: torch.mm(self.x, matrix.t(), out=self.out))
        finally:
            torch.backends.cuda.preferred_blas_library("cublas")

    def by_best_algorithm(self, workspace: torch.Tensor) -> tuple[float, str] | None:
        """By the quickest of all algorithms that cuBLASLt proposes."""
        found = torch.zeros(100 * 64 * 2, dtype=torch.uint8)
        number = self.algorithms.mm_bf16_cublaslt_get_algos(
            self.x, self.matrices[0], None, self.out, workspace,
            blas_handle(), found,
        )  # fmt: skip

        def run(matrix: torch.Tensor, index: int) -> None:
            self.algorithms.mm_bf16_cublaslt_run_with_algo(
                self.x, matrix, None, self.out, workspace,
                blas_handle(), found, index,
            )  # fmt: skip

        timed = []
        for index in range(number):
            took = tried(
                f"algorithm {index}",
                partial(self.timed, partial(run, index=index), 5),
            )
            if took is not None:
                timed.append((took, index))
        if not timed:
            return None
        took, index = min(timed)
        return took, f"algorithm {index} of {number}, error {self.error(partial(run, index=index))}"

    def by_tiny(self) -> tuple[float, str]:
        """By the kernel for few lines."""

        def run(matrix: torch.Tensor) -> None:
            self.tiny.tinygemm2_nobias_op(self.x, matrix, self.out, False)

        return self.timed(run), f"tiny error {self.error(run)}"

    def all(self, workspace: torch.Tensor) -> tuple[dict[str, float], list[str]]:
        """Microseconds by who makes it, and what there is to say of them."""
        us = {library: self.by_torch(library) for library in ("cublas", "cublaslt")}
        notes = []
        ways: dict[str, Callable[[], tuple[float, str] | None]] = {}
        if self.algorithms is not None:
            ways["best"] = lambda: self.by_best_algorithm(workspace)
        if self.tiny is not None and self.lines <= TINY_LINES:
            ways["tiny"] = self.by_tiny
        for name, way in ways.items():
            if (found := tried(name, way)) is not None:
                us[name], note = found
                notes.append(note)
        return us, notes


def products(batches: Sequence[int]) -> None:
    """All matrices of the model, and their sums for a step."""
    from flashinfer.gemm.routergemm import gen_tinygemm2_module
    from flashinfer.jit.gemm.core import gen_mm_bf16_cublaslt_module

    algorithms = tried("cuBLASLt", lambda: gen_mm_bf16_cublaslt_module().try_load())
    tiny = tried("tinygemm2", lambda: gen_tinygemm2_module().try_load())
    workspace = torch.empty(64 << 20, dtype=torch.uint8, device=DEVICE)
    sums: dict[int, dict[str, float]] = {lines: {} for lines in batches}
    for name, (rows, columns) in SHAPES.items():
        matrices, rounds = copies_of(rows, columns)
        times = 1 if name == "head" else LAYERS
        for lines in batches:
            product = Product(lines, matrices, rounds, algorithms, tiny)
            us, notes = product.all(workspace)
            for who, took in {**us, "least": min(us.values())}.items():
                sums[lines][who] = sums[lines].get(who, 0.0) + took * times
            floor = 2 * rows * columns / memory_speed() * 1e6
            said = "  ".join(f"{who} {took:7.1f} ({floor / took:.0%})" for who, took in us.items())
            print(f"{name:8} lines {lines:3}  {said}  {', '.join(notes)}", flush=True)
        del matrices, product
        torch.cuda.empty_cache()
    for lines, of_step in sums.items():
        said = ", ".join(f"{who} {took / 1e3:.2f} ms" for who, took in of_step.items())
        print(f"all products of a step, batch {lines}: {said}", flush=True)


def memory_speed() -> float:
    """Bytes a second that kernels get from this chip's memory, of an H200's where it is unknown."""
    return CHIPS.get(torch.cuda.get_device_name(), CHIPS["NVIDIA H200"]).read


class Contexts:
    """Lines that decode over a block-major pool.

    Args:
        lines: how many.
        length: of each context, tokens.
    """

    def __init__(self, lines: int, length: int) -> None:
        self.each = length // PAGE + 1
        pages = lines * self.each
        layers = LAYERS if pages * LAYERS < 1 << 18 else 4
        pool = torch.randn(pages, layers, 2, PAGE, KV_HEADS, DIM, device=DEVICE, dtype=HALF)
        self.layers = [layer.unbind(1) for layer in pool.unbind(1)]
        qkv = torch.randn(lines, HEADS + 2 * KV_HEADS, DIM, device=DEVICE, dtype=HALF)
        self.queries = qkv[:, :HEADS]
        self.indptr = torch.arange(lines + 1, dtype=torch.int32) * self.each
        self.pages = torch.randperm(pages, device=DEVICE).int()
        self.last = torch.full((lines,), length % PAGE + 1, dtype=torch.int32)
        self.lengths = torch.full((lines,), length + 1, dtype=torch.int32, device=DEVICE)
        self.bytes = 4 * lines * length * KV_HEADS * DIM

    def by_flash(self) -> tuple[float, torch.Tensor]:
        """As the engine's captured steps attend."""
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper

        wrapper = BatchDecodeWithPagedKVCacheWrapper(
            torch.zeros(384 << 20, dtype=torch.uint8, device=DEVICE),
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            backend="fa2",
            paged_kv_indptr_buffer=self.indptr.to(DEVICE),
            paged_kv_indices_buffer=self.pages.clone(),
            paged_kv_last_page_len_buffer=self.last.to(DEVICE),
        )
        wrapper.plan(
            self.indptr, self.pages, self.last, HEADS, KV_HEADS, DIM, PAGE,
            q_data_type=HALF, kv_data_type=HALF,
        )  # fmt: skip
        out = torch.empty(self.queries.shape, device=DEVICE, dtype=HALF)
        calls = [partial(wrapper.run, self.queries, kv, out=out) for kv in self.layers]
        return graph_us(calls), out

    def by_xqa(self) -> tuple[float, torch.Tensor]:
        """Without a plan and without merging; wants contiguous queries and a table of pages."""
        from flashinfer.decode import trtllm_batch_decode_with_kv_cache

        workspace = torch.zeros(256 << 20, dtype=torch.uint8, device=DEVICE)
        table, queries = self.pages.view(-1, self.each), self.queries.contiguous()
        out = torch.empty_like(queries)

        def run(kv: tuple[torch.Tensor, ...]) -> None:
            trtllm_batch_decode_with_kv_cache(
                queries, kv, workspace, table, self.lengths, self.each * PAGE,
                bmm1_scale=DIM**-0.5, bmm2_scale=1.0, kv_layout="NHD", out=out,
            )  # fmt: skip

        return graph_us([partial(run, kv) for kv in self.layers]), out


def attention(batches: Sequence[int]) -> None:
    """Decoding over contexts of two lengths."""
    for lines in batches:
        for length in CONTEXTS:
            contexts = Contexts(lines, length)
            ways: dict[str, Callable[[], tuple[float, torch.Tensor]]] = {
                "fa2": contexts.by_flash,
                "xqa": contexts.by_xqa,
            }
            said, outs = [], []
            for name, way in ways.items():
                if (found := tried(name, way)) is None:
                    continue
                us, out = found
                outs.append(out.float())
                speed = f"{contexts.bytes / us / 1e6:.2f} TB/s"
                said.append(f"{name} {us:6.1f} us, {speed}, {LAYERS * us / 1e3:.2f} ms a step")
            if len(outs) == 2:
                said.append(f"differ by {float((outs[1] - outs[0]).norm() / outs[0].norm()):.0e}")
            print(f"attention batch {lines:3} context {length:5}: {'; '.join(said)}", flush=True)
            del contexts, ways, outs
            torch.cuda.empty_cache()


def small_calls(kernels: Any, lines: int) -> Iterator[tuple[str, int, Call]]:
    """The engine's own kernels: name, how many in a layer, and a call."""
    weight = torch.rand(HIDDEN, device=DEVICE)
    table = torch.rand(4096, DIM, device=DEVICE)
    x, delta, gate_up = (
        torch.randn(lines, size, device=DEVICE, dtype=HALF)
        for size in (HIDDEN, HIDDEN, 2 * INTERMEDIATE)
    )
    qkv = torch.randn(lines, HEADS + 2 * KV_HEADS, DIM, device=DEVICE, dtype=HALF)
    pool = torch.zeros(lines + 1, LAYERS, 2, PAGE, KV_HEADS, DIM, device=DEVICE, dtype=HALF)
    at = torch.arange(lines, device=DEVICE)
    yield "norm", 2, lambda: kernels.add_rms_norm(x, delta, weight, 1e-5)
    yield "gate", 1, lambda: kernels.gated(gate_up, "silu")
    yield "rope", 1, lambda: kernels.rope_append(qkv, table, at, at * PAGE, pool, 3, HEADS)


def small(batches: Sequence[int]) -> None:
    """Norms, gates and rotations."""
    from gatewayd_engine.kernels.triton_kernels import TritonKernels

    kernels = TritonKernels()
    for lines in batches:
        said, step = [], 0.0
        for name, times, call in small_calls(kernels, lines):
            us = graph_us([call] * LAYERS)
            step += LAYERS * times * us
            said.append(f"{name} {us:5.1f}")
        print(f"small batch {lines:3}: {'  '.join(said)}  a step {step / 1e3:.2f} ms", flush=True)


def main() -> None:
    """Every part, whatever fails before it."""
    batches = [int(n) for n in sys.argv[1].split(",")] if len(sys.argv) > 1 else BATCHES
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    for part in (small, attention, products):
        tried(part.__name__, partial(part, batches))


if __name__ == "__main__":
    main()
