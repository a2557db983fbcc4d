"""Dynamic per-row quantization to 8-bit codes, and dequantization of integer sums, in Triton.

Memory-bound: a row stays in registers while its largest magnitude is determined. Rows computed by a
norm or a gate are quantized before they are stored, which saves half of the bytes and a launch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.quantized.base import QuantizedRows

_BLOCK = 1024
MOST_CODES = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Largest code by dtype of the codes."""
_LEAST_LINES = {torch.int8: 32, torch.float8_e4m3fn: 1}
"""Least rows of ``codes`` by dtype: integer matmul on a GPU requires more than 16."""


def empty_quantized(
    n: int, size: int, codes: torch.dtype, group: int, device: torch.device
) -> QuantizedRows:
    """Allocate codes for ``n`` rows, with a scale per group, or per row if ``group`` is 0."""
    # Only codes are padded: the number of scales tells the number of rows.
    lines = max(n, _LEAST_LINES[codes])
    return QuantizedRows(
        torch.empty((lines, size), dtype=codes, device=device),
        torch.empty((n, size // group if group else 1), dtype=torch.float32, device=device),
    )


def warps(size: int) -> int:
    """Return the warps of a program that has a row of ``size`` numbers in registers."""
    return int(min(16, max(1, triton.next_power_of_2(size) // 512)))


@triton.jit
def store_quantized(
    value: tl.tensor,
    inside: tl.tensor,
    column: tl.tensor,
    row: tl.tensor,
    size: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    MOST: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """Quantize and store a row, float32, with zeros where it is not ``inside``.

    The largest magnitude of the row, or of each ``GROUP`` columns, becomes ``MOST``.
    """
    WIDTH: tl.constexpr = GROUP if GROUP else value.shape[0]
    GROUPS: tl.constexpr = value.shape[0] // WIDTH
    part = tl.reshape(value, (GROUPS, WIDTH))
    # At least the smallest normal float32: rows of zeros get codes of zero rather than NaN.
    scale = tl.maximum(tl.max(tl.abs(part), 1) * (1.0 / MOST), 1.1754943508222875e-38)
    # The scale is NaN if any number of the group is, whatever the codes are.
    scale += tl.sum(part * 0.0, 1)
    # Rounded as in torch: Triton's default division is approximate, and other codes would result.
    code = tl.div_rn(part, tl.zeros_like(part) + scale[:, None])
    if codes.dtype.element_ty == tl.int8:
        # Rounds half to even: floats above 2 ** 23 are integers.
        code = (code + 12582912.0) - 12582912.0
    code = tl.reshape(code, (value.shape[0],))
    tl.store(codes + row * size + column, code.to(codes.dtype.element_ty), mask=inside)
    group = tl.arange(0, GROUPS)
    groups = tl.cdiv(size, WIDTH)
    tl.store(scales + row * groups + group, scale, mask=group < groups)


def quantize(x: torch.Tensor, codes: torch.dtype, group: int = 0) -> QuantizedRows:
    """See ``base``."""
    n, size = x.shape
    out = empty_quantized(n, size, codes, group, x.device)
    if n:
        _quantize[(n,)](
            x,
            out.codes,
            out.scales,
            size,
            x.stride(0),
            MOST=MOST_CODES[codes],
            GROUP=group,
            BLOCK=triton.next_power_of_2(size),
            num_warps=warps(size),
        )
    return out


@triton.jit
def _quantize(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    size: tl.tensor,
    stride: tl.tensor,
    MOST: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    store_quantized(value, inside, column, row, size, codes, scales, MOST, GROUP)


def dequantize_sums(
    sums: torch.Tensor,
    lines: torch.Tensor,
    rows: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """See ``base``."""
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
    # In this order, as on a CPU, where the same codes give the same bits.
    value = value * tl.load(lines + line) * tl.load(rows + row, mask=inside, other=0.0)
    if HAS_BIAS:
        value += tl.load(bias + row, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + line * stride + row, value.to(out.dtype.element_ty), mask=inside)
