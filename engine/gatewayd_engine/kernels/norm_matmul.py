"""RMSNorm fused with a matrix product for few tokens, in one Triton kernel.

Memory-bound: the matrix is read once. The norm's divisor is the same for a whole token, so it is
applied to the sums and computed from the same reads of the stream as they are; the norm's weight is
applied before. The gated activation of a feed-forward layer is applied to the sums, as one program
has the matching rows of both halves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.early_launch import wait
from gatewayd_engine.kernels.gated_mlp import gate

if TYPE_CHECKING:
    from gatewayd_engine.kernels.quantized.base import Activation

_LINES = 16
"""The smallest tile of a tensor core, and the most tokens that the kernel accepts."""
_ROWS, _COLUMNS = 32, 128
_AHEAD = 512
"""Columns that are prefetched before the residual stream is available."""


def norm_mm(
    x: torch.Tensor,
    scale: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    act: Activation | None,
    out: torch.Tensor,
    *,
    early: bool = False,
) -> None:
    """See ``base``."""
    n, columns = x.shape
    rows = out.shape[1]
    if n == 0:
        return
    _norm_mm[(triton.cdiv(rows, _ROWS),)](
        x,
        scale,
        weight,
        # A placeholder, which HAS_BIAS leaves unread.
        weight if bias is None else bias,
        out,
        n,
        rows,
        columns,
        x.stride(0),
        weight.stride(0),
        out.stride(0),
        eps,
        ACT=act,
        HAS_BIAS=bias is not None,
        LINES=_LINES,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        AHEAD=_AHEAD,
        EARLY=early,
        num_warps=4,
        num_stages=4,
        launch_pdl=early,
    )


@triton.jit
def _norm_mm(
    x: tl.tensor,
    scale: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    lines: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    x_stride: tl.tensor,
    weight_stride: tl.tensor,
    out_stride: tl.tensor,
    eps: tl.tensor,
    ACT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    has_row = (row < rows)[:, None]
    line = tl.arange(0, LINES)
    has_line = (line < lines)[None, :]
    # The matrix of a large vocabulary has more elements than an int32 can index.
    first = weight + row.to(tl.int64)[:, None] * weight_stride
    # Rows of the up projection follow those of the gate; they are read only if there is a gate.
    second = first + rows.to(tl.int64) * weight_stride
    if EARLY:
        # The matrix is prefetched while the previous kernel is still finishing.
        # Rows beyond the matrix prefetch its first row, not memory that is not the matrix's.
        _prefetch(tl.where(has_row, first, weight), columns, AHEAD)
        if ACT is not None:
            _prefetch(tl.where(has_row, second, weight), columns, AHEAD)
    wait(EARLY)
    # Transposed: rows of the matrix by tokens, which are the smaller side of the tile.
    sums = tl.zeros((ROWS, LINES), tl.float32)
    others = tl.zeros((ROWS, LINES), tl.float32)
    squares = tl.zeros((LINES,), tl.float32)
    for start in range(0, columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        has_column = column < columns
        place = x + line[None, :] * x_stride + column[:, None]
        wide = tl.load(place, mask=has_line & has_column[:, None], other=0.0).to(tl.float32)
        squares += tl.sum(wide * wide, 0)
        # The norm's weight differs by column and so precedes the sum; its divisor follows it.
        factor = tl.load(scale + column, mask=has_column, other=0.0)
        scaled = (wide * factor[:, None]).to(x.dtype.element_ty)
        inside = has_row & has_column[None, :]
        matrix = tl.load(first + column[None, :], mask=inside, other=0.0)
        sums = tl.dot(matrix, scaled, sums, input_precision="ieee")
        if ACT is not None:
            matrix = tl.load(second + column[None, :], mask=inside, other=0.0)
            others = tl.dot(matrix, scaled, others, input_precision="ieee")
    # Complete only after the loop: the mean square needs all columns of a token.
    norm = tl.rsqrt(squares / columns + eps)[None, :]
    made = sums * norm
    if HAS_BIAS:
        made += tl.load(bias + row, mask=row < rows, other=0.0).to(tl.float32)[:, None]
    # Rounded as the unfused product would be.
    result = made.to(out.dtype.element_ty)
    if ACT is not None:
        made = others * norm
        if HAS_BIAS:
            made += tl.load(bias + rows + row, mask=row < rows, other=0.0).to(tl.float32)[:, None]
        result = gate(result, made.to(out.dtype.element_ty), ACT)
    target = out + line[None, :] * out_stride + row[:, None]
    tl.store(target, result, mask=has_row & has_line)


@triton.jit
def _prefetch(place: tl.tensor, columns: tl.tensor, COLUMNS: tl.constexpr) -> None:
    """Prefetch the beginning of rows into the L2 cache, in lines of 128 bytes.

    Args:
        place: pointers to the first element of each row, shape ``[rows, 1]``.
        columns: columns of the matrix.
        COLUMNS: columns to prefetch.
    """
    step: tl.constexpr = 1024 // place.dtype.element_ty.primitive_bitwidth
    column = tl.minimum(tl.arange(0, COLUMNS // step) * step, columns - 1)[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // $0",
        "=r,l",
        [place + column],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
