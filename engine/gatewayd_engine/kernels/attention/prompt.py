"""Paged causal attention of prompt chunks in Triton: many queries of each sequence, by KV head.

For models whose prompts no library attends to: those with latent attention, and those with sinks
where FlashInfer is not installed. A tile has all heads of a KV head for some tokens of a sequence,
so that each of its keys is read once for all of them, and reads no key after its last token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.attention.paged_tile import (
    attend,
    first_visible,
    load_queries,
    normalized,
    tail_of,
)
from gatewayd_engine.kernels.attention.splits import most_rows, num_stages, row_tile, token_tile


def prompt_attention(
    query: torch.Tensor,
    keys_values: torch.Tensor,
    query_indptr: torch.Tensor,
    page_indptr: torch.Tensor,
    pages: torch.Tensor,
    last_page_len: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    softcap: float | None,
    window: int,
    sinks: torch.Tensor | None,
    first: int,
    most_queries: int,
    chunked: bool = False,
) -> None:
    """See ``base``."""
    lines = len(last_page_len) - first
    if lines == 0 or most_queries == 0:
        return
    (_, num_heads, dim), value_dim = query.shape, out.shape[2]
    page_size, kv_heads = keys_values.shape[2:4]
    group = num_heads // kv_heads
    keys, values = keys_values[:, 0], keys_values[:, -1]
    # The largest tile whatever the lengths, so that each model compiles one kernel per window.
    block_m = row_tile(1 << 10, most_rows(dim, query.dtype, query.device))
    block_d = max(triton.next_power_of_2(value_dim), 16)
    _prompt_attention[(triton.cdiv(most_queries * group, block_m), kv_heads, lines)](
        query,
        keys,
        values,
        query_indptr,
        page_indptr,
        pages,
        last_page_len,
        query if sinks is None else sinks,
        out,
        first,
        query.stride(0),
        query.stride(1),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        out.stride(0),
        out.stride(1),
        scale,
        softcap or 0.0,
        WINDOW=window,
        CHUNKED=chunked,
        HAS_SINKS=sinks is not None,
        HAS_CAP=softcap is not None,
        **tail_of(dim, value_dim, keys_values.shape[1]),
        GROUP=group,
        PAGE=page_size,
        DIM=value_dim,
        BLOCK_M=block_m,
        BLOCK_N=token_tile(block_d, query.dtype),
        BLOCK_D=block_d,
        num_warps=8 if block_m * block_d > 1 << 13 else 4,
        num_stages=num_stages(dim),
    )


@triton.jit(do_not_specialize=["first"])
def _prompt_attention(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    query_indptr: tl.tensor,
    page_indptr: tl.tensor,
    pages: tl.tensor,
    last_page_len: tl.tensor,
    sinks: tl.tensor,
    out: tl.tensor,
    first: tl.tensor,
    query_stride: tl.tensor,
    query_head_stride: tl.tensor,
    page_stride: tl.tensor,
    token_stride: tl.tensor,
    kv_head_stride: tl.tensor,
    out_stride: tl.tensor,
    out_head_stride: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    TAIL: tl.constexpr,
    BLOCK_T: tl.constexpr,
    SHARES: tl.constexpr,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    line, kv_head = first + tl.program_id(2), tl.program_id(1)
    begin = tl.load(query_indptr + line)
    count = tl.load(query_indptr + line + 1) - begin
    # The last tokens first: they see the most keys, and the rest fills up the device behind them.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    # The grid is that of the longest chunk.
    if tile * BLOCK_M >= count * GROUP:
        return
    page = tl.load(page_indptr + line)
    behind = tl.load(page_indptr + line + 1)
    length = (behind - page - 1) * PAGE + tl.load(last_page_len + line)
    start = length - count
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    slot, head = row // GROUP, kv_head * GROUP + row % GROUP
    is_row = slot < count
    token = (begin + slot).to(tl.int64)
    column = tl.arange(0, BLOCK_D)[None, :]
    held = is_row[:, None] & (column < DIM)
    own = query + token * query_stride + head * query_head_stride
    q, q_tail = load_queries(own, is_row, DIM, TAIL, BLOCK_D, BLOCK_T)
    low = tl.zeros((), tl.int32)
    if WINDOW:
        low = tl.maximum(first_visible(start + tile * BLOCK_M // GROUP, WINDOW, CHUNKED), 0)
    high = tl.minimum(start + (tile * BLOCK_M + BLOCK_M - 1) // GROUP + 1, length)
    head_place = kv_head.to(tl.int64) * kv_head_stride
    acc, highest, total = attend(
        q,
        q_tail,
        keys + head_place,
        values + head_place,
        pages + page,
        low,
        high,
        start,
        start + slot + 1,
        first_visible(start + slot, WINDOW, CHUNKED),
        tl.zeros((BLOCK_M,), tl.uint64),
        page_stride,
        token_stride,
        scale,
        cap,
        "causal",
        WINDOW,
        CHUNKED,
        1,
        HAS_CAP,
        PAGE,
        DIM,
        BLOCK_M,
        BLOCK_N,
        BLOCK_D,
        TAIL,
        BLOCK_T,
        SHARES,
    )
    acc = normalized(acc, highest, total, sinks, head, is_row, HAS_SINKS)
    target = out + (token * out_stride + head * out_head_stride)[:, None] + column
    tl.store(target, acc.to(out.dtype.element_ty), mask=held)
