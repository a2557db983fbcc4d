"""Decode attention of many sequences to a shared prefix, whose pages are read once per tile.

Its partial results are merged with those of the sequences' own tokens. Sources: cascade inference,
FlashInfer (Ye et al. 2024); Hydragen (arXiv 2402.05099).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.attention.paged_tile import attend, load_queries, part_of, tail_of
from gatewayd_engine.kernels.attention.partial_results import store_part
from gatewayd_engine.kernels.attention.splits import (
    LEAST_TOKENS,
    SharedPages,
    most_rows,
    num_stages,
    row_tile,
    token_tile,
)


def attend_shared(
    query: torch.Tensor,
    keys_values: torch.Tensor,
    value_dim: int,
    page_indptr: torch.Tensor,
    pages: torch.Tensor,
    partial: torch.Tensor,
    shared: SharedPages,
    scale: float,
    softcap: float | None,
    splits: int,
) -> None:
    """Store partial results of one query per sequence, after ``splits`` others.

    See ``decode_attention``; ``value_dim`` is the size of a value.
    """
    keys, values = keys_values[:, 0], keys_values[:, -1]
    lines, num_heads, dim = query.shape
    page_size, kv_heads = keys.shape[1:3]
    group = num_heads // kv_heads
    # Tiles span queries of different sequences: that is what saves the reads.
    rows = row_tile(lines * group, most_rows(dim, query.dtype, query.device))
    block_d = max(triton.next_power_of_2(value_dim), 16)
    _shared_attention[(triton.cdiv(lines * group, rows), kv_heads, shared.splits)](
        query,
        keys,
        values,
        page_indptr,
        pages,
        shared.num_pages,
        partial,
        lines * num_heads,
        query.stride(0),
        query.stride(1),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        scale,
        softcap or 0.0,
        SPLITS=splits,
        SHARED_SPLITS=shared.splits,
        HAS_CAP=softcap is not None,
        GROUP=group,
        **tail_of(dim, value_dim, keys_values.shape[1]),
        PAGE=page_size,
        DIM=value_dim,
        LEAST=LEAST_TOKENS,
        BLOCK_M=rows,
        BLOCK_N=token_tile(block_d, query.dtype),
        BLOCK_D=block_d,
        num_warps=8 if rows * block_d > 1 << 13 else 4,
        num_stages=num_stages(dim),
    )


@triton.jit(do_not_specialize=["rows"])
def _shared_attention(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    page_indptr: tl.tensor,
    pages: tl.tensor,
    shared_pages: tl.tensor,
    partial: tl.tensor,
    rows: tl.tensor,
    query_stride: tl.tensor,
    query_head_stride: tl.tensor,
    page_stride: tl.tensor,
    token_stride: tl.tensor,
    kv_head_stride: tl.tensor,
    scale: tl.tensor,
    cap: tl.tensor,
    SPLITS: tl.constexpr,
    SHARED_SPLITS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    TAIL: tl.constexpr,
    BLOCK_T: tl.constexpr,
    SHARES: tl.constexpr,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    LEAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """Attend queries of all sequences to the shared prefix, in the pages of the first sequence."""
    kv_head, split = tl.program_id(1), tl.program_id(2)
    length = tl.load(shared_pages) * PAGE
    each = part_of(length, SHARED_SPLITS, LEAST)
    begin = split * each
    # Also if no page is shared: captured steps run this kernel for any number of them.
    if begin >= length:
        return
    num_heads = GROUP * tl.num_programs(1)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    token, head = (row // GROUP).to(tl.int64), kv_head * GROUP + row % GROUP
    is_row = token * num_heads < rows
    column = tl.arange(0, BLOCK_D)[None, :]
    held = is_row[:, None] & (column < DIM)
    own = query + token * query_stride + head * query_head_stride
    q, q_tail = load_queries(own, is_row, DIM, TAIL, BLOCK_D, BLOCK_T)
    head_place = kv_head.to(tl.int64) * kv_head_stride
    acc, highest, total = attend(
        q,
        q_tail,
        keys + head_place,
        values + head_place,
        # The tables of all sequences begin with the same pages; the first one's is read.
        pages + tl.load(page_indptr),
        begin,
        tl.minimum(begin + each, length),
        length,
        # With the mask "all" neither limits nor bits are read.
        row,
        row,
        tl.zeros((BLOCK_M,), tl.uint64),
        page_stride,
        token_stride,
        scale,
        cap,
        "all",
        0,
        False,
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
    PARTS: tl.constexpr = SPLITS + SHARED_SPLITS
    place = (token * num_heads + head) * PARTS + SPLITS + split
    weights = partial + rows.to(tl.int64) * (PARTS * DIM)
    store_part(acc, highest, total, partial, weights, place, column, held, is_row, DIM)
