"""Weight-only quantized matmul of a few tokens with packed low-bit matrices, in Triton.

Memory-bound: each code is read once and converted in registers. Codes are exact in the dtype of the
activations, so scales are applied to the sums of a group: a product is rounded as one of floats
would be. Split-K is used where rows alone would not occupy the device. Sources for packing: GPTQ
(Frantar et al., arXiv 2210.17323) and Marlin (arXiv 2408.11743).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.quantized.scratch import ROWS, splits
from gatewayd_engine.kernels.quantized.split_k import store_sums
from gatewayd_engine.kernels.quantized.unpack import code_at, codes_of

if TYPE_CHECKING:
    from gatewayd_engine.kernels.quantized.packing import PackedWeight
    from gatewayd_engine.kernels.quantized.scratch import DequantizeScratch


def grouped_mm(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    scratch: DequantizeScratch,
    out: torch.Tensor,
) -> None:
    """See ``base``."""
    m, rows = len(x), weight.rows
    if m == 0:
        return
    parts = splits(weight)
    _grouped_mm[(triton.cdiv(rows, ROWS), parts)](
        x,
        weight.words,
        weight.scales,
        # Placeholders for absent tensors; the constexpr flags leave them unread.
        weight.scales if weight.offsets is None else weight.offsets,
        weight.words if weight.order is None else weight.order,
        out if bias is None else bias,
        out,
        scratch.partial,
        scratch.arrived,
        m,
        rows,
        weight.columns,
        weight.scales.shape[0],
        weight.words.shape[0],
        x.stride(0),
        out.stride(0),
        BITS=weight.bits,
        ZERO=weight.zero,
        IS_FLOAT=weight.is_float,
        RUN=weight.run,
        GROUP=weight.group,
        HAS_OFFSETS=weight.offsets is not None,
        HAS_ORDER=weight.order is not None,
        HAS_BIAS=bias is not None,
        SPLITS=parts,
        # Two variants suffice: ``m`` is at most ``MOST_LINES``.
        BLOCK_M=16 if m <= 16 else 32,
        BLOCK_N=ROWS,
        num_warps=4,
        num_stages=4,
    )


@triton.jit
def _load_activations(
    x: tl.tensor,
    order: tl.tensor,
    line: tl.tensor,
    m: tl.tensor,
    column: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    HAS_ORDER: tl.constexpr,
) -> tl.tensor:
    """Load the activations of some columns of the matrix, zeros after the last column."""
    inside = column < columns
    source = column
    if HAS_ORDER:
        # Columns are packed group by group; activations are read in that order.
        source = tl.load(order + column, mask=inside, other=0)
    place = x + line[:, None] * stride + source[None, :]
    return tl.load(place, mask=(line < m)[:, None] & inside[None, :], other=0.0)


# The number of tokens changes with each step; 1 and multiples of 16 would be compiled separately.
@triton.jit(do_not_specialize=["m"])
def _grouped_mm(
    x: tl.tensor,
    words: tl.tensor,
    scales: tl.tensor,
    offsets: tl.tensor,
    order: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    arrived: tl.tensor,
    m: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    groups: tl.tensor,
    blocks: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    PER_WORD: tl.constexpr = 32 // BITS
    lane = tl.arange(0, 16)
    line = tl.arange(0, BLOCK_M)
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_line = row < rows, line < m
    split = tl.program_id(1)
    # Split-K: each program sums a contiguous range of blocks.
    each = (blocks + SPLITS - 1) // SPLITS
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for block in range(split * each, tl.minimum(split * each + each, blocks)):
        at = (block * rows + row)[None, :] * 16 + lane[:, None]
        packed = tl.load(words + at, mask=is_row[None, :], other=0)
        if RUN == PER_WORD:
            # All codes of the words belong to one group.
            column = block * PER_WORD * 16 + tl.arange(0, PER_WORD * 16)
            given = _load_activations(x, order, line, m, column, columns, x_stride, HAS_ORDER)
            code = codes_of(packed, BITS, ZERO, IS_FLOAT, given.dtype)
            part = tl.dot(given, code, input_precision="ieee")
            group = tl.minimum(block * PER_WORD * 16 // GROUP, groups - 1)
            scale = tl.load(scales + group * rows + row, mask=is_row, other=0.0)
            acc += part * scale.to(tl.float32)[None, :]
            if HAS_OFFSETS:
                offset = tl.load(offsets + group * rows + row, mask=is_row, other=0.0)
                # All columns of a group have one offset, which is multiplied with their sum.
                total = tl.sum(given.to(tl.float32), 1)
                acc += total[:, None] * offset.to(tl.float32)[None, :]
        else:
            # Groups end within a word: each sixteen columns are multiplied and scaled alone.
            for place in tl.static_range(PER_WORD):
                column = (block * PER_WORD + place) * 16 + lane
                given = _load_activations(x, order, line, m, column, columns, x_stride, HAS_ORDER)
                code = code_at(packed, place, BITS, ZERO, IS_FLOAT).to(given.dtype)
                part = tl.dot(given, code, input_precision="ieee")
                # Padding codes after the last column are multiplied by zeros, whatever their group.
                group = tl.minimum((block * PER_WORD + place) * 16 // GROUP, groups - 1)
                scale = tl.load(scales + group * rows + row, mask=is_row, other=0.0)
                acc += part * scale.to(tl.float32)[None, :]
                if HAS_OFFSETS:
                    offset = tl.load(offsets + group * rows + row, mask=is_row, other=0.0)
                    total = tl.sum(given.to(tl.float32), 1)
                    acc += total[:, None] * offset.to(tl.float32)[None, :]

    writes = is_line[:, None] & is_row[None, :]
    target = out + line[:, None] * out_stride + row[None, :]
    added = tl.zeros((BLOCK_N,), tl.float32)
    if HAS_BIAS:
        added = tl.load(bias + row, mask=is_row, other=0.0).to(tl.float32)
    # One tile of tokens holds all of them, so a counter for each tile of rows suffices.
    mine = line[:, None] * rows + row[None, :]
    count, at = BLOCK_M * rows, arrived + tl.program_id(0)
    store_sums(acc, added, target, writes, mine, count, partial, at, split, SPLITS)
