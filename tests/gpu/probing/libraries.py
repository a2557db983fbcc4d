"""FlashInfer's modules, if they are compiled: the probe has no minutes for a compiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


def cublaslt() -> Any | None:
    """The algorithms that cuBLASLt proposes."""
    return _compiled("cuBLASLt", _cublaslt)


def tinygemm2() -> Any | None:
    """The kernel for few lines."""
    return _compiled("tinygemm2", _tinygemm2)


@cache
def has_fa2(queries: torch.dtype, keys: torch.dtype, dim: int) -> bool:
    """Whether FlashAttention 2 is compiled for such queries and keys."""
    from flashinfer.prefill import _gen_batch_prefill_primary_module

    rest = (dim, dim, 0, False, False, False)
    made = _gen_batch_prefill_primary_module("fa2", queries, keys, queries, torch.int32, *rest)
    return made.try_load() is not None


@cache
def has_xqa(queries: torch.dtype, keys: torch.dtype, page_size: int, dim: int, group: int) -> bool:
    """Whether XQA is compiled for such queries, keys and heads of a key head."""
    from flashinfer.jit.xqa import gen_xqa_module

    made = gen_xqa_module(queries, keys, page_size, dim, group, False, queries)
    return made.try_load() is not None


def handle() -> int:
    """That of cuBLAS for the current stream."""
    return int(torch.cuda.current_blas_handle())  # type: ignore[no-untyped-call]


def _cublaslt() -> Any:
    from flashinfer.jit.gemm.core import gen_mm_bf16_cublaslt_module

    return gen_mm_bf16_cublaslt_module().try_load()


def _tinygemm2() -> Any:
    from flashinfer.gemm.routergemm import gen_tinygemm2_module

    return gen_tinygemm2_module().try_load()


def _compiled(name: str, load: Callable[[], Any]) -> Any | None:
    try:
        made = load()
    except Exception as error:  # noqa: BLE001 - the others are measured without it
        print(f"{name} is absent: {type(error).__name__}: {str(error)[:150]}", flush=True)
        return None
    if made is None:
        print(f"{name} is absent: it is not compiled", flush=True)
    return made
