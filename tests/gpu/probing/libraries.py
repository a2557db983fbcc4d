"""FlashInfer's modules, if they are compiled: the probe has no minutes for a compiler."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch


class Absent(Exception):
    """What a row compares with is not installed, or not compiled; no failure."""


def require() -> None:
    """Tell a FlashInfer that is not there from one that has changed, which is a failure.

    Raises:
        Absent: it is not installed.
    """
    if find_spec("flashinfer") is None:
        raise Absent("FlashInfer is not installed")


def cublaslt() -> Any:
    """The algorithms that cuBLASLt proposes.

    Raises:
        Absent: there are none.
    """
    require()
    from flashinfer.jit.gemm.core import gen_mm_bf16_cublaslt_module

    return _compiled(gen_mm_bf16_cublaslt_module().try_load())


def tinygemm2() -> Any:
    """The kernel for few lines.

    Raises:
        Absent: there is none.
    """
    require()
    from flashinfer.gemm.routergemm import gen_tinygemm2_module

    return _compiled(gen_tinygemm2_module().try_load())


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


def _compiled(module: Any | None) -> Any:
    if module is None:
        raise Absent("it is not compiled")
    return module
