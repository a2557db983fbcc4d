"""Decode attention over pages in Triton: a few queries of each line, all heads of a key head.

Bound by memory: keys and values of a line are read once for each tile of queries, which has all
query heads of a key head and, where drafts are verified, all queries of a line. Nothing is planned
on the host: programs work out their range from the lengths on the device, and those without work
leave at once. So one capture serves steps of all lengths.

Where lines are too few to fill the device, contexts are split and partial answers merged by a
second small kernel (Flash-Decoding, Dao et al. 2023). It is no last arriver's work: a program for
each query and head reads all parts at once, where the last arriver of a key head would read those
of all its heads one after the other, and no counter has to be left at zero. Parts are added in
their order, so that answers are the same each time. A context that is one part is written at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.attending import LOG2E, attend, count_bits, part_of
from gatewayd_engine.kernels.splits import LEAST_TOKENS, row_tile

_TILE_BYTES = 1 << 14
"""Of the keys that are read at a time."""


def decode_attention(
    query: torch.Tensor,
    keys_values: torch.Tensor,
    page_indptr: torch.Tensor,
    pages: torch.Tensor,
    last_page_len: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    softcap: float | None,
    window: int,
    sinks: torch.Tensor | None,
    width: int,
    num_queries: torch.Tensor | None,
    ancestors: torch.Tensor | None,
    splits: int,
    scratch: torch.Tensor | None,
) -> None:
    """See ``Kernels``."""
    tokens, num_heads, dim = query.shape
    lines, kv_heads, page_size = len(last_page_len), keys_values.shape[3], keys_values.shape[2]
    if lines == 0:
        return
    group = num_heads // kv_heads
    block_m, block_d = row_tile(width * group), max(triton.next_power_of_2(dim), 16)
    if ancestors is not None:
        mask = "tree"
    else:
        # The only query of a line sees all of its range.
        mask = "causal" if width > 1 or num_queries is not None else "all"
    keys, values = keys_values.unbind(1)
    partial = out if scratch is None else scratch
    sizes = {
        "SPLITS": splits,
        "WIDTH": width,
        "WINDOW": window,
        "HAS_COUNTS": num_queries is not None,
        "HAS_SINKS": sinks is not None,
        "PAGE": page_size,
        "DIM": dim,
        "BLOCK_D": block_d,
        "LEAST": LEAST_TOKENS,
    }
    _decode_attention[(lines * triton.cdiv(width * group, block_m), kv_heads, splits)](
        query,
        keys,
        values,
        page_indptr,
        pages,
        last_page_len,
        last_page_len if num_queries is None else num_queries,
        pages if ancestors is None else ancestors,
        query if sinks is None else sinks,
        out,
        partial,
        tokens * num_heads,
        query.stride(0),
        query.stride(1),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        out.stride(0),
        out.stride(1),
        scale,
        softcap or 0.0,
        **sizes,
        HAS_CAP=softcap is not None,
        GROUP=group,
        MASK=mask,
        BLOCK_M=block_m,
        BLOCK_N=min(max(_TILE_BYTES // (block_d * query.element_size()), 16), 64),
        num_warps=8 if block_m * block_d > 1 << 13 else 4,
        num_stages=3,
    )
    if splits > 1:
        block = triton.next_power_of_2(splits)
        _merge_parts[(tokens, num_heads)](
            page_indptr,
            last_page_len,
            last_page_len if num_queries is None else num_queries,
            query if sinks is None else sinks,
            out,
            partial,
            tokens * num_heads,
            out.stride(0),
            out.stride(1),
            **sizes,
            BLOCK_S=block,
            num_warps=8 if block * block_d > 1 << 12 else 4,
        )


@triton.jit
def _range_of(
    line: tl.tensor,
    page_indptr: tl.tensor,
    last_page_len: tl.tensor,
    num_queries: tl.tensor,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    PAGE: tl.constexpr,
    LEAST: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """A line's first page, tokens and queries, the first token seen, its parts, their size."""
    first, behind = tl.load(page_indptr + line), tl.load(page_indptr + line + 1)
    length = (behind - first - 1) * PAGE + tl.load(last_page_len + line)
    length = tl.maximum(length, 0)
    count = tl.full((), WIDTH, tl.int32)
    if HAS_COUNTS:
        count = tl.minimum(tl.load(num_queries + line), WIDTH)
    low = tl.zeros((), tl.int32)
    if WINDOW:
        low = tl.maximum(length - count - WINDOW + 1, 0)
    each = part_of(length - low, SPLITS, LEAST)
    parts = tl.maximum((length - low + each - 1) // each, 1)
    return first, length, count, low, parts, each


@triton.jit(do_not_specialize=["rows"])
def _decode_attention(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    page_indptr: tl.tensor,
    pages: tl.tensor,
    last_page_len: tl.tensor,
    num_queries: tl.tensor,
    ancestors: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    rows: tl.tensor,
    query_stride: tl.tensor,
    query_head_stride: tl.tensor,
    page_stride: tl.tensor,
    token_stride: tl.tensor,
    kv_head_stride: tl.tensor,
    out_stride: tl.tensor,
    out_head_stride: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LEAST: tl.constexpr,
    HAS_CAP: tl.constexpr,
    GROUP: tl.constexpr,
    MASK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    TILES: tl.constexpr = (WIDTH * GROUP + BLOCK_M - 1) // BLOCK_M
    line, kv_head, split = tl.program_id(0) // TILES, tl.program_id(1), tl.program_id(2)
    first, length, count, low, parts, each = _range_of(
        line,
        page_indptr,
        last_page_len,
        num_queries,
        SPLITS,
        WIDTH,
        WINDOW,
        HAS_COUNTS,
        PAGE,
        LEAST,
    )
    if split >= parts:
        return
    start = length - count
    row = tl.program_id(0) % TILES * BLOCK_M + tl.arange(0, BLOCK_M)
    slot, head = row // GROUP, kv_head * GROUP + row % GROUP
    is_row, is_real = row < WIDTH * GROUP, slot < tl.minimum(count, WIDTH)
    token = (line * WIDTH + slot).to(tl.int64)
    column = tl.arange(0, BLOCK_D)[None, :]
    held = is_row[:, None] & (column < DIM)
    q = tl.load(
        query + (token * query_stride + head * query_head_stride)[:, None] + column,
        mask=held,
        other=0.0,
    )
    limit = tl.where(is_real, start + slot + 1, 0)
    oldest = start + slot - WINDOW + 1
    bits = tl.zeros((BLOCK_M,), tl.uint64)
    if MASK == "tree":
        told = tl.load(ancestors + token, mask=is_row & is_real, other=0)
        bits = told.to(tl.uint64, bitcast=True)
        limit = tl.where(is_real, start, 0)
        oldest = start + count_bits(bits) - WINDOW
    head_place = kv_head.to(tl.int64) * kv_head_stride
    begin = low + split * each
    acc, highest, total = attend(
        q,
        keys + head_place,
        values + head_place,
        pages + first,
        begin,
        tl.minimum(begin + each, length),
        start,
        limit,
        oldest,
        bits,
        page_stride,
        token_stride,
        scale,
        cap,
        MASK,
        WINDOW,
        WIDTH,
        HAS_CAP,
        PAGE,
        DIM,
        BLOCK_M,
        BLOCK_N,
        BLOCK_D,
    )
    if parts == 1:
        if HAS_SINKS:
            sink = tl.load(sinks + head, mask=is_row, other=0.0) * LOG2E
            raised = tl.maximum(highest, sink)
            acc = acc * tl.exp2(highest - raised)[:, None]
            total = total * tl.exp2(highest - raised) + tl.exp2(sink - raised)
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        target = out + (token * out_stride + head * out_head_stride)[:, None] + column
        tl.store(target, acc.to(out.dtype.element_ty), mask=held)
    elif SPLITS > 1:
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        place = (token * (GROUP * tl.num_programs(1)) + head) * SPLITS + split
        tl.store(partial + (place * DIM)[:, None] + column, acc, mask=held)
        weight = highest + tl.log2(total)
        tl.store(partial + rows.to(tl.int64) * (SPLITS * DIM) + place, weight, mask=is_row)


@triton.jit(do_not_specialize=["rows"])
def _merge_parts(
    page_indptr: tl.tensor,
    last_page_len: tl.tensor,
    num_queries: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    rows: tl.tensor,
    out_stride: tl.tensor,
    out_head_stride: tl.tensor,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LEAST: tl.constexpr,
    BLOCK_S: tl.constexpr,
) -> None:
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    _, _, _, _, parts, _ = _range_of(
        tl.program_id(0) // WIDTH,
        page_indptr,
        last_page_len,
        num_queries,
        SPLITS,
        WIDTH,
        WINDOW,
        HAS_COUNTS,
        PAGE,
        LEAST,
    )
    if parts == 1:
        return
    part, column = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    place = (token * tl.num_programs(1) + head) * SPLITS + part
    weights = partial + rows.to(tl.int64) * (SPLITS * DIM) + place
    weight = tl.load(weights, mask=part < parts, other=float("-inf"))
    highest = tl.max(weight, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + head) * LOG2E
        highest = tl.maximum(highest, sink)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    weight = tl.exp2(weight - base)
    total = tl.sum(weight, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - base)
    answers = tl.load(
        partial + (place * DIM)[:, None] + column[None, :],
        mask=(part < parts)[:, None] & (column < DIM)[None, :],
        other=0.0,
    )
    made = tl.sum(answers * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    target = out + token * out_stride + head * out_head_stride + column
    tl.store(target, made.to(out.dtype.element_ty), mask=column < DIM)
