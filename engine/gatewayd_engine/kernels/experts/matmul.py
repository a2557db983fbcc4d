"""Grouped matmul of sorted visits with their experts' matrices, in Triton: floats or 8-bit codes.

A program multiplies one block of visits with some rows of one expert. With few tokens it is
memory-bound, and each visited matrix is read once; with many, tensor cores work on large tiles.
Codes are accumulated by tensor cores and scaled in float32: per-row scales at the end, block scales
group by group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.experts.base import ClampedAct, RowCodes
from gatewayd_engine.kernels.experts.packed_matmul import packed_mm
from gatewayd_engine.kernels.experts.tiles import epilogue, store_visits, tile_of
from gatewayd_engine.kernels.quantized.block_scales import GROUP
from gatewayd_engine.kernels.quantized.packing import PackedWeight

if TYPE_CHECKING:
    from gatewayd_engine.kernels.experts.base import ExpertMatrices, Visits
    from gatewayd_engine.kernels.quantized.base import Activation, QuantizedRows
    from gatewayd_engine.kernels.quantized.block_scales import Blocks

_BAND = 8
_ROWS = {16: 64, 32: 64, 64: 128, 128: 128}
"""Rows of the matrix that a program processes, by the lines of a block."""
_BYTES = 256
"""Bytes of each row of a tile that are loaded at once with few lines; half of it with many."""
_FEW = 32


class _Tensors(NamedTuple):
    """Kernel arguments that depend on the form of the matrices."""

    x: torch.Tensor
    x_scales: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor
    groups: int
    tall: int
    kind: str


def expert_gates(
    x: torch.Tensor | QuantizedRows,
    weight: ExpertMatrices,
    visits: Visits,
    act: Activation | ClampedAct,
    out: torch.Tensor,
) -> None:
    """See ``base``."""
    # A token's ``top_k`` visits share its row of ``x``.
    _launch(x, weight, visits, None, visits.top_k, act, out)


def expert_answers(
    x: torch.Tensor | QuantizedRows,
    weight: ExpertMatrices,
    visits: Visits,
    weights: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """See ``base``."""
    # Each visit has a row of its own.
    _launch(x, weight, visits, weights, 1, None, out)


def _launch(
    x: torch.Tensor | QuantizedRows,
    weight: ExpertMatrices,
    visits: Visits,
    weights: torch.Tensor | None,
    per: int,
    act: Activation | ClampedAct | None,
    out: torch.Tensor,
) -> None:
    if not visits.num_visits:
        return
    if isinstance(x, torch.Tensor) and isinstance(weight.all, PackedWeight):
        packed_mm(x, weight, visits, weights, per, act, out)
        return
    of = _tensors(x, weight)
    # The most blocks that there can be: their actual number is known on the device only.
    rows, blocks = out.shape[1], len(visits.experts)
    # With gates each program has two tiles: one of the gate projection, one of the up projection.
    wide = _ROWS[visits.lines] // (2 if act is not None else 1)
    deep = _deep(visits.lines, of)
    _expert_mm[(blocks * triton.cdiv(rows, wide),)](
        of.x,
        of.x_scales,
        of.codes,
        of.scales,
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
        of.groups,
        of.x.stride(0),
        PER=per,
        KIND=of.kind,
        TALL=of.tall,
        **epilogue(weight, act),
        # Decided at compilation, so that the common case has no masks over columns.
        IS_EVEN=weight.columns % deep == 0,
        BAND=_BAND,
        BLOCK_M=visits.lines,
        BLOCK_N=wide,
        BLOCK_K=deep,
        num_warps=8 if visits.lines > _FEW else 4,
        num_stages=4 if visits.lines <= _FEW else 3,
    )


def _deep(lines: int, of: _Tensors) -> int:
    """Return the columns that are multiplied at once."""
    if of.kind == "blocks":
        return GROUP
    return (_BYTES if lines <= _FEW else _BYTES // 2) // of.codes.itemsize


def _tensors(x: torch.Tensor | QuantizedRows, weight: ExpertMatrices) -> _Tensors:
    if isinstance(x, torch.Tensor):
        floats = cast("torch.Tensor", weight.all)
        return _Tensors(x, x, floats, floats, 1, 1, "floats")
    form = cast("RowCodes | Blocks", weight.all)
    if isinstance(form, RowCodes):
        return _Tensors(x.codes, x.scales, form.codes, form.scales, 1, 1, "rows")
    groups = form.scales.shape[1]
    return _Tensors(x.codes, x.scales, form.codes, form.scales, groups, form.tall, "blocks")


# Both change with the number of tokens; 1 and multiples of 16 would be compiled separately.
@triton.jit(do_not_specialize=["count", "blocks"])
def _expert_mm(
    x: tl.tensor,
    x_scales: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    order: tl.tensor,
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
    x_stride: tl.tensor,
    PER: tl.constexpr,
    KIND: tl.constexpr,
    TALL: tl.constexpr,
    ACT: tl.constexpr,
    LIMIT: tl.constexpr,
    SHARPNESS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_EVEN: tl.constexpr,
    BAND: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    block, tile = tile_of(tl.program_id(0), blocks, tl.cdiv(rows, BLOCK_N), BAND)
    # 64 bits: the stack of all experts may have more elements than an int32 can index.
    expert = tl.load(experts + block).to(tl.int64)
    if expert < 0:
        return
    visit = tl.load(order + block * BLOCK_M + tl.arange(0, BLOCK_M))
    is_line = visit < count
    line = (visit // PER).to(tl.int64)
    row = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, BLOCK_K)
    is_row = row < rows
    mask_x, mask_w = is_line[:, None], is_row[None, :]
    from_x = x + line[:, None] * x_stride + lane[None, :]
    matrix = codes + expert * all_rows * columns
    from_gate = matrix + row[None, :] * columns + lane[:, None]
    from_up = from_gate + rows * columns
    # Sums of int8 codes are exact in int32.
    SUMS: tl.constexpr = tl.int32 if codes.dtype.element_ty == tl.int8 else tl.float32
    acc = tl.zeros((BLOCK_M, BLOCK_N), SUMS)
    acc_up = acc
    # For block scales: number of row blocks per expert, and the expert's first scale.
    high = tl.cdiv(all_rows, TALL)
    from_scales = scales + expert * groups * high
    for start in range(0, columns, BLOCK_K):
        if not IS_EVEN:
            inside = lane < columns - start
            mask_x = is_line[:, None] & inside[None, :]
            mask_w = is_row[None, :] & inside[:, None]
        given = tl.load(from_x + start, mask=mask_x, other=0.0)
        gate = tl.load(from_gate + start, mask=mask_w, other=0.0)
        if KIND == "blocks":
            # A step over columns is exactly one group, whose sum is scaled before it is added.
            group = start // BLOCK_K
            mine = tl.load(x_scales + line * groups + group, mask=is_line, other=0.0)
            theirs = tl.load(from_scales + group * high + row // TALL, mask=is_row, other=0.0)
            acc += tl.dot(given, gate) * (mine[:, None] * theirs[None, :])
            if ACT != "":
                up = tl.load(from_up + start, mask=mask_w, other=0.0)
                place = from_scales + group * high + (rows + row) // TALL
                theirs = tl.load(place, mask=is_row, other=0.0)
                acc_up += tl.dot(given, up) * (mine[:, None] * theirs[None, :])
        else:
            acc = tl.dot(given, gate, acc, input_precision="ieee", out_dtype=SUMS)
            if ACT != "":
                up = tl.load(from_up + start, mask=mask_w, other=0.0)
                acc_up = tl.dot(given, up, acc_up, input_precision="ieee", out_dtype=SUMS)
    made, made_up = acc.to(tl.float32), acc_up.to(tl.float32)
    if KIND == "rows":
        # Scales of rows are the same for all columns, so they are applied to the final sums.
        mine = tl.load(x_scales + line, mask=is_line, other=0.0)[:, None]
        place = scales + expert * all_rows + row
        made = made * mine * tl.load(place, mask=is_row, other=0.0)[None, :]
        if ACT != "":
            made_up = made_up * mine * tl.load(place + rows, mask=is_row, other=0.0)[None, :]
    store_visits(
        made, made_up, weights, biases + expert * all_rows, out, visit, is_line, row, rows,
        ACT, LIMIT, SHARPNESS, HAS_BIAS,
    )  # fmt: skip
