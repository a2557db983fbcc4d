"""Rows rounded to codes of eight bits, each with a scale of its own, and sums of such codes.

Bound by memory: a row stays in registers while its largest number is looked for. Where a norm or a
gate makes the row, it is rounded before it is written: half of the bytes, and no launch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.base import Rounded

_BLOCK = 1024
MOST_CODES = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Types of codes, and the largest of each."""
_LEAST_LINES = {torch.int8: 32, torch.float8_e4m3fn: 1}
"""Products of integers on a GPU take more than 16 lines."""


def rounded_like(n: int, size: int, codes: torch.dtype, device: torch.device) -> Rounded:
    """Where codes of so many rows go."""
    lines = max(n, _LEAST_LINES[codes])
    return Rounded(
        torch.empty((lines, size), dtype=codes, device=device),
        torch.empty((n, 1), dtype=torch.float32, device=device),
    )


def warps(size: int) -> int:
    """Of a program that has a row in its registers."""
    return int(min(16, max(1, triton.next_power_of_2(size) // 512)))


@triton.jit
def store_rounded(
    value: tl.tensor,
    inside: tl.tensor,
    column: tl.tensor,
    row: tl.tensor,
    size: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    MOST: tl.constexpr,
) -> None:
    """Round a row, float32 and 0 where it is not ``inside``, so that its largest is ``MOST``."""
    scale = tl.maximum(tl.max(tl.abs(value), 0) * (1.0 / MOST), 1.1754943508222875e-38)
    # No number if one of the row is none, whatever its code is.
    scale += tl.sum(value * 0.0, 0)
    code = tl.div_rn(value, tl.zeros_like(value) + scale)
    if codes.dtype.element_ty == tl.int8:
        # To the nearest integer, of two the even one: beyond 2 ** 23 there are no others.
        code = (code + 12582912.0) - 12582912.0
    tl.store(codes + row * size + column, code.to(codes.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)


def quantise(x: torch.Tensor, codes: torch.dtype) -> Rounded:
    """See ``Kernels``."""
    n, size = x.shape
    out = rounded_like(n, size, codes, x.device)
    if n:
        _quantise[(n,)](
            x,
            out.codes,
            out.scales,
            size,
            x.stride(0),
            MOST=MOST_CODES[codes],
            BLOCK=triton.next_power_of_2(size),
            num_warps=warps(size),
        )
    return out


@triton.jit
def _quantise(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    size: tl.tensor,
    stride: tl.tensor,
    MOST: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    store_rounded(value, inside, column, row, size, codes, scales, MOST)


def scaled(
    sums: torch.Tensor,
    lines: torch.Tensor,
    rows: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """See ``Kernels``."""
    n, size = out.shape
    if n:
        _scaled[(n, triton.cdiv(size, _BLOCK))](
            sums,
            lines,
            rows,
            rows if bias is None else bias,
            out,
            size,
            out.stride(0),
            HAS_BIAS=bias is not None,
            BLOCK=_BLOCK,
            num_warps=4,
        )


@triton.jit
def _scaled(
    sums: tl.tensor,
    lines: tl.tensor,
    rows: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    size: tl.tensor,
    stride: tl.tensor,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    line = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = row < size
    value = tl.load(sums + line * size + row, mask=inside, other=0).to(tl.float32)
    value = value * tl.load(lines + line) * tl.load(rows + row, mask=inside, other=0.0)
    if HAS_BIAS:
        value += tl.load(bias + row, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + line * stride + row, value.to(out.dtype.element_ty), mask=inside)
