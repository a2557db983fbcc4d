"""Paged decode attention in Triton: a few queries of each sequence, by KV head.

Memory-bound: keys and values of a sequence are read once per tile of queries, which has all query
heads of a KV head and, where drafts are verified, all queries of a sequence. Nothing is planned on
the host: programs compute their range from the lengths on the device, and those without work exit
at once. So one capture serves steps of all lengths.

Where there are too few sequences to occupy the device, contexts are split and partial results
merged by a second small kernel (Flash-Decoding, Dao et al. 2023). The last split to finish does not
merge them itself: the merging kernel has a program for each query and head, which reads all parts
at once, where the last program of a KV head would read those of all its heads in sequence; nor does
it need counters that are reset to zero. Parts are added in a fixed order, so that results are
deterministic. A context of one part is written directly.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.attention.paged_tile import (
    attend,
    count_bits,
    first_visible,
    load_queries,
    normalized,
    tail_of,
)
from gatewayd_engine.kernels.attention.partial_results import merge_parts, range_of, store_part
from gatewayd_engine.kernels.attention.shared_prefix import attend_shared
from gatewayd_engine.kernels.attention.splits import (
    LEAST_TOKENS,
    SharedPages,
    most_rows,
    num_stages,
    row_tile,
    token_tile,
)
from gatewayd_engine.kernels.early_launch import wait


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
    shared: SharedPages | None = None,
    chunked: bool = False,
    early: bool = False,
) -> None:
    """See ``base``."""
    (tokens, num_heads, dim), value_dim = query.shape, out.shape[2]
    lines, kv_heads, page_size = len(last_page_len), keys_values.shape[3], keys_values.shape[2]
    if lines == 0:
        return
    group = num_heads // kv_heads
    # Queries and heads of a KV head share tiles, for each of which keys are read once. tl.dot needs
    # sides of at least 16.
    block_m = row_tile(width * group, most_rows(dim, query.dtype, query.device))
    block_d = max(triton.next_power_of_2(value_dim), 16)
    if ancestors is not None:
        mask = "tree"
    else:
        # The only query of a sequence sees its whole range.
        mask = "causal" if width > 1 or num_queries is not None else "all"
    keys, values = keys_values[:, 0], keys_values[:, -1]
    # Placeholders for absent tensors keep one signature; the constexpr flags leave them unread.
    partial = out if scratch is None else scratch
    shared_splits = 0 if shared is None else shared.splits
    shared_pages = last_page_len if shared is None else shared.num_pages
    counts = last_page_len if num_queries is None else num_queries
    # Both kernels derive the same parts from these, so they must be called with the same values.
    sizes = {
        "SPLITS": splits,
        "SHARED_SPLITS": shared_splits,
        "WIDTH": width,
        "WINDOW": window,
        "CHUNKED": chunked,
        "HAS_COUNTS": num_queries is not None,
        "PAGE": page_size,
        "DIM": value_dim,
        "BLOCK_D": block_d,
        "LEAST": LEAST_TOKENS,
    }
    # The shared prefix, then the sequences' own tokens; the merge reads the results of both.
    if shared is not None:
        attend_shared(
            *(query, keys_values, value_dim, page_indptr, pages, partial, shared),
            *(scale, softcap, splits),
        )
    _decode_attention[(lines * triton.cdiv(width * group, block_m), kv_heads, splits)](
        query,
        keys,
        values,
        page_indptr,
        pages,
        last_page_len,
        counts,
        pages if ancestors is None else ancestors,
        query if sinks is None else sinks,
        shared_pages,
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
        HAS_SINKS=sinks is not None,
        HAS_CAP=softcap is not None,
        **tail_of(dim, value_dim, keys_values.shape[1]),
        GROUP=group,
        MASK=mask,
        BLOCK_M=block_m,
        BLOCK_N=token_tile(block_d, query.dtype),
        EARLY=early,
        # At most 64 float32 accumulators for each thread; of wide heads, 128.
        num_warps=8 if block_m * block_d > 1 << 13 else 4,
        num_stages=num_stages(dim),
        launch_pdl=early,
    )
    if splits + shared_splits > 1:
        lengths = (page_indptr, last_page_len, counts, shared_pages)
        merge_parts(*lengths, sinks, out, partial, early=early, **sizes)


# ``rows`` changes with the captured size; 1 and multiples of 16 would be compiled separately.
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
    shared_pages: tl.tensor,
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
    SHARED_SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LEAST: tl.constexpr,
    HAS_CAP: tl.constexpr,
    TAIL: tl.constexpr,
    BLOCK_T: tl.constexpr,
    SHARES: tl.constexpr,
    GROUP: tl.constexpr,
    MASK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    wait(EARLY)
    TILES: tl.constexpr = (WIDTH * GROUP + BLOCK_M - 1) // BLOCK_M
    line, kv_head, split = tl.program_id(0) // TILES, tl.program_id(1), tl.program_id(2)
    first, length, count, low, parts, each = range_of(
        line,
        page_indptr,
        last_page_len,
        num_queries,
        shared_pages,
        SPLITS,
        SHARED_SPLITS,
        WIDTH,
        WINDOW,
        CHUNKED,
        HAS_COUNTS,
        PAGE,
        LEAST,
    )
    # The grid is that of the longest context; shorter ones have fewer parts.
    if split >= parts:
        return
    start = length - count
    # Queries of the tile: the heads of one token after those of another.
    row = tl.program_id(0) % TILES * BLOCK_M + tl.arange(0, BLOCK_M)
    slot, head = row // GROUP, kv_head * GROUP + row % GROUP
    is_row, is_real = row < WIDTH * GROUP, slot < tl.minimum(count, WIDTH)
    token = (line * WIDTH + slot).to(tl.int64)
    column = tl.arange(0, BLOCK_D)[None, :]
    held = is_row[:, None] & (column < DIM)
    own = query + token * query_stride + head * query_head_stride
    q, q_tail = load_queries(own, is_row, DIM, TAIL, BLOCK_D, BLOCK_T)
    # Which positions a row sees. Padding queries see none, and so get zeros.
    limit = tl.where(is_real, start + slot + 1, 0)
    position = start + slot
    bits = tl.zeros((BLOCK_M,), tl.uint64)
    if MASK == "tree":
        ancestor_bits = tl.load(ancestors + token, mask=is_row & is_real, other=0)
        bits = ancestor_bits.to(tl.uint64, bitcast=True)
        # In a tree all tokens before this step are seen; of this step's, those whose bit is set.
        limit = tl.where(is_real, start, 0)
        # A node's position follows from the number of its ancestors, not from its slot.
        position = start + count_bits(bits) - 1
    oldest = first_visible(position, WINDOW, CHUNKED)
    head_place = kv_head.to(tl.int64) * kv_head_stride
    begin = low + split * each
    acc, highest, total = attend(
        q,
        q_tail,
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
        CHUNKED,
        WIDTH,
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
    # A context of one part is complete unless it has a shared prefix, which excludes a window.
    is_whole = parts == 1
    if SHARED_SPLITS:
        is_whole = is_whole & (low == 0)
    if is_whole:
        acc = normalized(acc, highest, total, sinks, head, is_row, HAS_SINKS)
        target = out + (token * out_stride + head * out_head_stride)[:, None] + column
        tl.store(target, acc.to(out.dtype.element_ty), mask=held)
    # Without splits there is no scratch to write to.
    elif SPLITS + SHARED_SPLITS > 1:
        PARTS: tl.constexpr = SPLITS + SHARED_SPLITS
        place = (token * (GROUP * tl.num_programs(1)) + head) * PARTS + split
        weights = partial + rows.to(tl.int64) * (PARTS * DIM)
        store_part(acc, highest, total, partial, weights, place, column, held, is_row, DIM)
