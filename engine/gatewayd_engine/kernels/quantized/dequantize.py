"""Dequantization of packed matrices in Triton, for products of many tokens by cuBLAS.

Memory-bound: each code is read once, and each number written once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.quantized.scratch import ROWS
from gatewayd_engine.kernels.quantized.unpack import code_at

if TYPE_CHECKING:
    from gatewayd_engine.kernels.quantized.packing import PackedWeight


def dequantize_rows(weight: PackedWeight, first: int, out: torch.Tensor) -> None:
    """See ``base``."""
    count = out.shape[1]
    _expand[(triton.cdiv(count, ROWS), weight.words.shape[0])](
        weight.words,
        weight.scales,
        weight.scales if weight.offsets is None else weight.offsets,
        weight.words if weight.order is None else weight.order,
        out,
        first,
        count,
        weight.rows,
        weight.columns,
        weight.scales.shape[0],
        out.stride(0),
        BITS=weight.bits,
        ZERO=weight.zero,
        IS_FLOAT=weight.is_float,
        GROUP=weight.group,
        HAS_OFFSETS=weight.offsets is not None,
        HAS_ORDER=weight.order is not None,
        BLOCK_N=ROWS,
        num_warps=4,
    )


@triton.jit
def _expand(
    words: tl.tensor,
    scales: tl.tensor,
    offsets: tl.tensor,
    order: tl.tensor,
    out: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    groups: tl.tensor,
    out_stride: tl.tensor,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    PER_WORD: tl.constexpr = 32 // BITS
    lane = tl.arange(0, 16)
    block = tl.program_id(1)
    place_in_out = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row = place_in_out < count
    # Rows are indexed in the whole matrix, columns of the output from 0.
    row = first + place_in_out
    at = (block * rows + row)[None, :] * 16 + lane[:, None]
    packed = tl.load(words + at, mask=is_row[None, :], other=0)
    # Each word is loaded once; its codes belong to columns sixteen apart.
    for place in tl.static_range(PER_WORD):
        column = (block * PER_WORD + place) * 16 + lane
        inside = column < columns
        # Sixteen adjacent columns are of one group. Padding after the last column would be of none.
        group = tl.minimum((block * PER_WORD + place) * 16 // GROUP, groups - 1)
        scale = tl.load(scales + group * rows + row, mask=is_row, other=0.0)
        code = code_at(packed, place, BITS, ZERO, IS_FLOAT)
        value = code * scale.to(tl.float32)[None, :]
        if HAS_OFFSETS:
            offset = tl.load(offsets + group * rows + row, mask=is_row, other=0.0)
            value += offset.to(tl.float32)[None, :]
        target = column
        if HAS_ORDER:
            # Scattered back to the order of the activations, which cuBLAS reads as they are.
            target = tl.load(order + column, mask=inside, other=0)
        tl.store(
            out + target[:, None] * out_stride + place_in_out[None, :],
            value.to(out.dtype.element_ty),
            mask=inside[:, None] & is_row[None, :],
        )
