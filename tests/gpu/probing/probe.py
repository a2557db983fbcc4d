"""Attention and products beside other libraries': FlashInfer's, cuBLAS, cuBLASLt, tinygemm2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tests.gpu.probing.attention import E4M3, Contexts
from tests.gpu.probing.bench import Bench
from tests.gpu.probing.libraries import (
    Absent,
    cublaslt,
    handle,
    has_fa2,
    has_xqa,
    require,
    tinygemm2,
)
from tests.gpu.probing.trial import Tensors, Trial

_TINY_LINES = 64
_ALGORITHMS = 32
"""Of cuBLASLt's, which it proposes in the order of its own estimate."""
_FLOATS, _WORK, _ALGORITHM_WORK = 384 << 20, 256 << 20, 64 << 20
"""Bytes of workspaces."""


class Flash:
    """FlashInfer's attention; its workspaces are shared by all rows."""

    def __init__(self, device: torch.device) -> None:
        size = 64 if device.type == "cpu" else _FLOATS
        self._floats = torch.zeros(size, dtype=torch.uint8, device=device)

    def by_fa2(self, contexts: Contexts, is_whole: bool, is_early: bool) -> Trial:
        """As captured decode steps attend by it; see ``attention/wrappers.py``."""
        require()
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper

        inputs, shape, pool = contexts.inputs, contexts.shape, contexts.pool
        if not has_fa2(pool.dtype, pool.data.dtype, shape.head_dim):
            raise Absent("it is not compiled")
        wrapper = BatchDecodeWithPagedKVCacheWrapper(
            self._floats,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            backend="fa2",
            paged_kv_indptr_buffer=inputs.page_indptr.clone(),
            paged_kv_indices_buffer=inputs.pages.clone(),
            paged_kv_last_page_len_buffer=inputs.last_page_len.clone(),
        )
        wrapper.plan(
            contexts.indptr, inputs.pages, contexts.last,
            shape.num_heads, shape.num_kv_heads, shape.head_dim, pool.page_size,
            q_data_type=pool.dtype, kv_data_type=pool.data.dtype, disable_split_kv=is_whole,
        )  # fmt: skip
        out = torch.empty(contexts.queries.shape, dtype=pool.dtype, device=pool.data.device)
        layers = [layer.unbind(1) for layer in pool.data.unbind(1)]
        calls = [
            partial(wrapper.run, contexts.queries, kv, out=out, enable_pdl=is_early)
            for kv in layers
        ]

        def answer() -> Tensors:
            calls[0]()
            return contexts.compared(out)

        return Trial(calls, answer, contexts.wanted, contexts.read)

    def by_xqa(self, contexts: Contexts) -> Trial:
        """Without a plan and without merging; wants contiguous queries and a table of pages."""
        require()
        from flashinfer.decode import trtllm_batch_decode_with_kv_cache

        inputs, shape, pool = contexts.inputs, contexts.shape, contexts.pool
        group = shape.num_heads // shape.num_kv_heads
        if not has_xqa(pool.dtype, pool.data.dtype, pool.page_size, shape.head_dim, group):
            raise Absent("it is not compiled")
        workspace = torch.zeros(_WORK, dtype=torch.uint8, device=pool.data.device)
        table = inputs.pages.view(-1, contexts.each)
        queries = contexts.queries.contiguous()
        lengths = torch.full_like(inputs.last_page_len, contexts.length)
        out = torch.empty_like(queries)

        def run(kv: tuple[torch.Tensor, ...]) -> None:
            trtllm_batch_decode_with_kv_cache(
                queries, kv, workspace, table, lengths, contexts.each * pool.page_size,
                bmm1_scale=shape.scale, bmm2_scale=1.0, kv_layout="NHD", out=out,
            )  # fmt: skip

        layers = [layer.unbind(1) for layer in pool.data.unbind(1)]

        def answer() -> Tensors:
            run(layers[0])
            return contexts.compared(out)

        return Trial([partial(run, kv) for kv in layers], answer, contexts.wanted, contexts.read)


def attention(bench: Bench) -> None:
    """Decoding over contexts of several lengths; keys in the type of queries, and in e4m3.

    Where contexts are longer than a chunk, also within their last chunk.
    """
    flash = Flash(bench.device)
    for length in bench.contexts:
        for lines in bench.batches:
            with bench.at("attention", lines=lines, context=length):
                for suffix, element in (("", None), (" e4m3", E4M3)):
                    contexts = Contexts(bench, lines, length, element)
                    bench.both(f"triton{suffix}", contexts.by_decode)
                    for is_whole in (False, True):
                        for is_early in (False, True):
                            said = f"{' whole' * is_whole}{' early' * is_early}"
                            make = partial(flash.by_fa2, contexts, is_whole, is_early)
                            bench.row(f"fa2{suffix}{said}", make)
                    bench.row(f"xqa{suffix}", partial(flash.by_xqa, contexts))
            if length > bench.sizes.chunk:
                with bench.at("attention, chunks", lines=lines, context=length):
                    contexts = Contexts(bench, lines, length, chunk=bench.sizes.chunk)
                    bench.both("triton", contexts.by_decode)


class Product:
    """One product, ``x`` of some lines with a matrix, by everything that can compute it.

    Args:
        bench: measures.
        lines: of ``x``.
        matrices: copies of the matrix, ``[rows, columns]``.
        rounds: how often to go through them.
    """

    def __init__(self, bench: Bench, lines: int, matrices: list[torch.Tensor], rounds: int) -> None:
        rows, columns = matrices[0].shape
        self._bench, self._matrices, self._rounds = bench, matrices, rounds
        self._x, self._out = bench.randn(lines, columns), bench.randn(lines, rows)

    def _wanted(self) -> Tensors:
        return (self._x.float() @ self._matrices[0].float().t(),)

    def _trial(self, run: Callable[[torch.Tensor], object], note: str = "") -> Trial:
        calls = [partial(run, matrix) for matrix in self._matrices] * self._rounds

        def answer() -> Tensors:
            run(self._matrices[0])
            return (self._out,)

        return Trial(calls, answer, self._wanted, self._matrices[0].nbytes, note)

    def by_torch(self, library: str) -> Trial:
        """By the library that torch is told to prefer."""
        if library == "cublaslt" and self._x.device.type == "cpu":
            raise Absent("torch for CPUs has none")

        def run(matrix: torch.Tensor) -> None:
            torch.backends.cuda.preferred_blas_library(library)
            torch.mm(self._x, matrix.t(), out=self._out)
            torch.backends.cuda.preferred_blas_library("cublas")

        return self._trial(run)

    def by_best_algorithm(self, module: Any, workspace: torch.Tensor) -> Trial:
        """By the quickest algorithm of those that cuBLASLt proposes first."""
        found = torch.zeros(100 * 64 * 2, dtype=torch.uint8)
        number = module.mm_bf16_cublaslt_get_algos(
            self._x, self._matrices[0], None, self._out, workspace, handle(), found
        )

        def run(index: int, matrix: torch.Tensor) -> None:
            module.mm_bf16_cublaslt_run_with_algo(
                self._x, matrix, None, self._out, workspace, handle(), found, index
            )

        timed = []
        for index in range(min(number, _ALGORITHMS)):
            calls = [partial(run, index, matrix) for matrix in self._matrices]
            timed.append((self._bench.clock(calls * self._rounds), index))
        if not timed:
            raise Absent("cuBLASLt proposes nothing")
        _, index = min(timed)
        return self._trial(partial(run, index), f"algorithm {index} of {number}")

    def by_tiny(self, module: Any) -> Trial:
        """By the kernel for few lines."""

        def run(matrix: torch.Tensor) -> None:
            module.tinygemm2_nobias_op(self._x, matrix, self._out, False)

        return self._trial(run)


def products(bench: Bench) -> None:
    """All matrices of the model, and their sums for a step."""
    if bench.is_compiling:
        return
    lt = bench.library("cuBLASLt", cublaslt)
    tiny = bench.library("tinygemm2", tinygemm2)
    size = 1 if lt is None else _ALGORITHM_WORK
    workspace = torch.empty(size, dtype=torch.uint8, device=bench.device)
    sums: dict[int, dict[str, float]] = {lines: {} for lines in bench.batches}
    for name, (rows, columns) in bench.sizes.matrices.items():
        matrices, rounds = bench.copies(rows, columns)
        times = 1 if name == "head" else bench.sizes.layers
        for lines in bench.batches:
            product = Product(bench, lines, matrices, rounds)
            with bench.at(f"product {name}", lines=lines):
                us = {
                    library: bench.row(library, partial(product.by_torch, library))
                    for library in ("cublas", "cublaslt")
                }
                if lt is not None:
                    us["best"] = bench.row(
                        "best", partial(product.by_best_algorithm, lt, workspace)
                    )
                if tiny is not None and lines <= _TINY_LINES:
                    us["tiny"] = bench.row("tiny", partial(product.by_tiny, tiny))
            there = {who: took for who, took in us.items() if took is not None}
            for who, took in {**there, "least": min(there.values(), default=0.0)}.items():
                sums[lines][who] = sums[lines].get(who, 0.0) + took * times
    for lines, of_step in sums.items():
        said = ", ".join(f"{who} {took / 1e3:.2f} ms" for who, took in of_step.items())
        print(f"all products of a step, {lines} lines: {said}", flush=True)
