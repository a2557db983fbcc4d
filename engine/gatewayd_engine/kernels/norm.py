"""RMSNorm in Triton.

Memory-bound: each value is read and written once, and a row stays in registers in between. With few
rows the latency of one program dominates, so wide rows get more warps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.early_launch import wait
from gatewayd_engine.kernels.quantized.base import QuantizedRows
from gatewayd_engine.kernels.quantized.quantize_rows import (
    MOST_CODES,
    empty_quantized,
    store_quantized,
    warps,
)

_HEADS, _WIDE = 8, 512
"""Heads that one program processes, and the size above which it is one."""


def add_rms_norm(
    x: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    *,
    early: bool = False,
) -> torch.Tensor:
    """See ``base``."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, delta, weight, eps, out, None, 0.0, 0, early)
    return out


def add_rms_norm_quant(
    x: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    codes: torch.dtype,
    group: int = 0,
    *,
    early: bool = False,
) -> QuantizedRows:
    """See ``base``."""
    n, size = x.shape
    out = empty_quantized(n, size, codes, group, x.device)
    _launch(x, delta, weight, eps, out.codes, out.scales, MOST_CODES[codes], group, early)
    return out


def _launch(
    x: torch.Tensor,
    delta: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    scales: torch.Tensor | None,
    most: float,
    group: int,
    early: bool,
) -> None:
    n, size = x.shape
    if n == 0:
        return
    # Placeholders keep one signature; the constexpr flags leave them unread.
    other = x if delta is None else delta
    _add_rms_norm[(n,)](
        x,
        other,
        weight,
        out,
        out if scales is None else scales,
        size,
        x.stride(0),
        other.stride(0),
        eps,
        ADDS=delta is not None,
        ROUNDS=scales is not None,
        MOST=most,
        GROUP=group,
        BLOCK=triton.next_power_of_2(size),
        EARLY=early,
        num_warps=warps(size),
        launch_pdl=early,
    )


@triton.jit
def _add_rms_norm(
    x: tl.tensor,
    delta: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    size: tl.tensor,
    x_stride: tl.tensor,
    delta_stride: tl.tensor,
    eps: tl.tensor,
    ADDS: tl.constexpr,
    ROUNDS: tl.constexpr,
    MOST: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    # Before the wait: no kernel writes weights, so they may be loaded while one is finishing.
    factor = tl.load(weight + column, mask=inside, other=0.0)
    wait(EARLY)
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0)
    if ADDS:
        added = tl.load(delta + row * delta_stride + column, mask=inside, other=0.0)
        # The rounded sum is normalised, as that is what later layers read.
        value = (value.to(tl.float32) + added.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(x + row * x_stride + column, value, mask=inside)
    wide = value.to(tl.float32)
    # Lanes beyond the row are zeros, so they do not change the sum.
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    # Rounded to the activation dtype before quantization as well, as the unfused kernels do.
    result = (wide * scale * factor).to(x.dtype.element_ty)
    if ROUNDS:
        store_quantized(result.to(tl.float32), inside, column, row, size, out, scales, MOST, GROUP)
    else:
        tl.store(out + row * size + column, result, mask=inside)


def norm_heads(x: torch.Tensor, weight: torch.Tensor, eps: float, *, early: bool = False) -> None:
    """See ``base``."""
    n, heads, dim = x.shape
    if n == 0:
        return
    block = triton.next_power_of_2(dim)
    # All queries of a token may be one head: a program then has it alone, and more registers.
    together = _HEADS if block <= _WIDE else 1
    _norm_heads[(n, triton.cdiv(heads, together))](
        x,
        weight,
        heads,
        dim,
        x.stride(0),
        x.stride(1),
        eps,
        HEADS=together,
        BLOCK=block,
        EARLY=early,
        num_warps=2 if block <= _WIDE else 8,
        launch_pdl=early,
    )


@triton.jit
def _norm_heads(
    x: tl.tensor,
    weight: tl.tensor,
    heads: tl.tensor,
    dim: tl.tensor,
    row_stride: tl.tensor,
    head_stride: tl.tensor,
    eps: tl.tensor,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (head < heads) & (column < dim)
    place = x + row * row_stride + head * head_stride + column
    factor = tl.load(weight + head * dim + column, mask=inside, other=0.0)
    wait(EARLY)
    value = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 1) / dim + eps)
    tl.store(place, (value * scale[:, None] * factor).to(x.dtype.element_ty), mask=inside)
