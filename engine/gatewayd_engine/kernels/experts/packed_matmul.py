"""Grouped matmul of sorted visits with packed low-bit expert matrices, in Triton.

As in ``quantized.packed_matmul``, each code is converted in registers, exactly in the dtype of the
activations, and scales are applied to the sums of a group. Gate and up projections are summed one
after the other: activations are read twice, from cache, as registers fit the codes of one matrix
only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.experts.tiles import epilogue, store_visits, tile_of
from gatewayd_engine.kernels.quantized.unpack import code_at, codes_of

if TYPE_CHECKING:
    from gatewayd_engine.kernels.experts.base import ClampedAct, ExpertMatrices, Visits
    from gatewayd_engine.kernels.quantized.base import Activation
    from gatewayd_engine.kernels.quantized.packing import PackedWeight

_BAND = 8
_ROWS = 64
_FEW = 32


def packed_mm(
    x: torch.Tensor,
    weight: ExpertMatrices,
    visits: Visits,
    weights: torch.Tensor | None,
    per: int,
    act: Activation | ClampedAct | None,
    out: torch.Tensor,
) -> None:
    """Compute either product of ``ExpertKernels`` with packed matrices.

    Args:
        x: shape ``[n, columns]``.
        weight: matrices of the experts.
        visits: routing tables of the tokens.
        weights: router's weight of each visit, float32; None if there are gates.
        per: visits per row of ``x``.
        act: activation of the gates; None for none.
        out: shape ``[visits, rows]``, or half of the rows if there are gates.
    """
    form, one = cast("PackedWeight", weight.all), cast("PackedWeight", weight.one)
    rows, blocks = out.shape[1], len(visits.experts)
    # Gates take twice the work for each row of the output; with few visits more programs share it.
    wide = _ROWS // 2 if act is not None and visits.lines <= _FEW else _ROWS
    _packed_mm[(blocks * triton.cdiv(rows, wide),)](
        x,
        form.words,
        form.scales,
        # Placeholders for absent tensors; the constexpr flags leave them unread.
        form.scales if form.offsets is None else form.offsets,
        form.words if form.order is None else form.order,
        visits.order,
        visits.experts,
        out if weights is None else weights,
        out if weight.bias is None else weight.bias,
        out,
        visits.num_visits,
        blocks,
        rows,
        weight.rows,
        weight.columns,
        one.scales.shape[0],
        one.words.shape[0],
        x.stride(0),
        PER=per,
        **epilogue(weight, act),
        BITS=form.bits,
        ZERO=form.zero,
        IS_FLOAT=form.is_float,
        RUN=one.run,
        GROUP=one.group,
        HAS_OFFSETS=form.offsets is not None,
        HAS_ORDER=form.order is not None,
        BAND=_BAND,
        BLOCK_M=visits.lines,
        BLOCK_N=wide,
        num_warps=8 if visits.lines > _FEW else 4,
        num_stages=3,
    )


@triton.jit
def _load_activations(
    from_x: tl.tensor,
    order: tl.tensor,
    is_line: tl.tensor,
    column: tl.tensor,
    columns: tl.tensor,
    HAS_ORDER: tl.constexpr,
) -> tl.tensor:
    """Load the activations of some columns of the matrix, zeros after the last column."""
    inside = column < columns
    source = column
    if HAS_ORDER:
        source = tl.load(order + column, mask=inside, other=0)
    place = from_x[:, None] + source[None, :]
    return tl.load(place, mask=is_line[:, None] & inside[None, :], other=0.0)


@triton.jit
def _sums(
    from_x: tl.tensor,
    is_line: tl.tensor,
    words: tl.tensor,
    scales: tl.tensor,
    offsets: tl.tensor,
    order: tl.tensor,
    row: tl.tensor,
    is_row: tl.tensor,
    all_rows: tl.tensor,
    columns: tl.tensor,
    groups: tl.tensor,
    pieces: tl.tensor,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> tl.tensor:
    """Multiply a block's activations with some rows of one expert's matrix, in float32."""
    PER_WORD: tl.constexpr = 32 // BITS
    # Codes of a word that are multiplied at once: all of them if they belong to one group.
    AT_ONCE: tl.constexpr = PER_WORD if RUN == PER_WORD else 1
    lane = tl.arange(0, 16)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for piece in range(0, pieces):
        at = (piece * all_rows + row)[None, :] * 16 + lane[:, None]
        packed = tl.load(words + at, mask=is_row[None, :], other=0)
        for place in tl.static_range(0, PER_WORD, AT_ONCE):
            first = (piece * PER_WORD + place) * 16
            column = first + tl.arange(0, AT_ONCE * 16)
            given = _load_activations(from_x, order, is_line, column, columns, HAS_ORDER)
            if AT_ONCE == 1:
                code = code_at(packed, place, BITS, ZERO, IS_FLOAT).to(given.dtype)
            else:
                code = codes_of(packed, BITS, ZERO, IS_FLOAT, given.dtype)
            part = tl.dot(given, code, input_precision="ieee")
            # Padding codes after the last column are multiplied by zeros, whatever their group.
            group = tl.minimum(first // GROUP, groups - 1)
            scale = tl.load(scales + group * all_rows + row, mask=is_row, other=0.0)
            acc += part * scale.to(tl.float32)[None, :]
            if HAS_OFFSETS:
                offset = tl.load(offsets + group * all_rows + row, mask=is_row, other=0.0)
                # All columns of a group have one offset, which is multiplied with their sum.
                total = tl.sum(given.to(tl.float32), 1)
                acc += total[:, None] * offset.to(tl.float32)[None, :]
    return acc


# Both change with the number of tokens; 1 and multiples of 16 would be compiled separately.
@triton.jit(do_not_specialize=["count", "blocks"])
def _packed_mm(
    x: tl.tensor,
    words: tl.tensor,
    scales: tl.tensor,
    offsets: tl.tensor,
    order: tl.tensor,
    visits: tl.tensor,
    experts: tl.tensor,
    weights: tl.tensor,
    biases: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    blocks: tl.tensor,
    rows: tl.tensor,
    all_rows: tl.tensor,
    columns: tl.tensor,
    groups: tl.tensor,
    pieces: tl.tensor,
    x_stride: tl.tensor,
    PER: tl.constexpr,
    ACT: tl.constexpr,
    LIMIT: tl.constexpr,
    SHARPNESS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    RUN: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    BAND: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    block, tile = tile_of(tl.program_id(0), blocks, tl.cdiv(rows, BLOCK_N), BAND)
    expert = tl.load(experts + block).to(tl.int64)
    if expert < 0:
        return
    visit = tl.load(visits + block * BLOCK_M + tl.arange(0, BLOCK_M))
    is_line = visit < count
    from_x = x + (visit // PER).to(tl.int64) * x_stride
    row = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row = row < rows
    # Tensors of all experts are stacked; pointers move to this expert's. ``expert`` is int64.
    words += expert * pieces * all_rows * 16
    scales += expert * groups * all_rows
    offsets += expert * groups * all_rows
    order += expert * columns
    made = _sums(
        from_x, is_line, words, scales, offsets, order, row, is_row, all_rows, columns, groups,
        pieces, BITS, ZERO, IS_FLOAT, RUN, GROUP, HAS_OFFSETS, HAS_ORDER, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    up = made
    if ACT != "":
        up = _sums(
            from_x, is_line, words, scales, offsets, order, rows + row, is_row, all_rows, columns,
            groups, pieces, BITS, ZERO, IS_FLOAT, RUN, GROUP, HAS_OFFSETS, HAS_ORDER, BLOCK_M,
            BLOCK_N,
        )  # fmt: skip
    store_visits(
        made, up, weights, biases + expert * all_rows, out, visit, is_line, row, rows, ACT, LIMIT,
        SHARPNESS, HAS_BIAS,
    )  # fmt: skip
