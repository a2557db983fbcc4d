"""Split-KV decode attention: the parts of a context, and storing and merging partial results.

A context of one part is written directly, and its merging program exits. Parts are added in a fixed
order, so that results are deterministic. Source: Flash-Decoding (Dao et al. 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.attention.paged_tile import LOG2E, first_visible, part_of
from gatewayd_engine.kernels.early_launch import wait


def merge_parts(
    page_indptr: torch.Tensor,
    last_page_len: torch.Tensor,
    num_queries: torch.Tensor,
    shared_pages: torch.Tensor,
    sinks: torch.Tensor | None,
    out: torch.Tensor,
    partial: torch.Tensor,
    *,
    SPLITS: int,
    SHARED_SPLITS: int,
    DIM: int,
    BLOCK_D: int,
    early: bool = False,
    **sizes: int,
) -> None:
    """Merge the partial results of each query and head into ``out``; see ``decode_attention``."""
    tokens, num_heads = out.shape[:2]
    block = triton.next_power_of_2(SPLITS + SHARED_SPLITS)
    _merge_parts[(tokens, num_heads)](
        page_indptr,
        last_page_len,
        num_queries,
        partial if sinks is None else sinks,
        shared_pages,
        out,
        partial,
        tokens * num_heads,
        out.stride(0),
        out.stride(1),
        SPLITS=SPLITS,
        SHARED_SPLITS=SHARED_SPLITS,
        DIM=DIM,
        BLOCK_D=BLOCK_D,
        HAS_SINKS=sinks is not None,
        **sizes,
        BLOCK_S=block,
        EARLY=early,
        num_warps=8 if block * BLOCK_D > 1 << 12 else 4,
        launch_pdl=early,
    )


@triton.jit
def range_of(
    line: tl.tensor,
    page_indptr: tl.tensor,
    last_page_len: tl.tensor,
    num_queries: tl.tensor,
    shared_pages: tl.tensor,
    SPLITS: tl.constexpr,
    SHARED_SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    HAS_COUNTS: tl.constexpr,
    PAGE: tl.constexpr,
    LEAST: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return a sequence's first page, tokens, queries, first visible token, parts and part size."""
    first, behind = tl.load(page_indptr + line), tl.load(page_indptr + line + 1)
    length = (behind - first - 1) * PAGE + tl.load(last_page_len + line)
    # A sequence without pages would have a negative length.
    length = tl.maximum(length, 0)
    count = tl.full((), WIDTH, tl.int32)
    if HAS_COUNTS:
        count = tl.minimum(tl.load(num_queries + line), WIDTH)
    low = tl.zeros((), tl.int32)
    if WINDOW:
        # The first query of the step sees furthest back; positions before that are seen by none.
        low = tl.maximum(first_visible(length - count, WINDOW, CHUNKED), 0)
    elif SHARED_SPLITS:
        # The shared prefix is attended by its own kernel.
        low = tl.load(shared_pages) * PAGE
    each = part_of(length - low, SPLITS, LEAST)
    # At least one, so that a program writes zeros where there is nothing to attend to.
    parts = tl.maximum((length - low + each - 1) // each, 1)
    return first, length, count, low, parts, each


@triton.jit
def store_part(
    acc: tl.tensor,
    highest: tl.tensor,
    total: tl.tensor,
    partial: tl.tensor,
    weights: tl.tensor,
    place: tl.tensor,
    column: tl.tensor,
    held: tl.tensor,
    is_row: tl.tensor,
    DIM: tl.constexpr,
) -> None:
    """Store the results of ``attend`` for a part: its output and the log2 of its weight."""
    # Normalised here, so that the merge needs one weight for each part (0 if a row sees nothing).
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(partial + (place * DIM)[:, None] + column, acc, mask=held)
    tl.store(weights + place, highest + tl.log2(total), mask=is_row)


@triton.jit(do_not_specialize=["rows"])
def _merge_parts(
    page_indptr: tl.tensor,
    last_page_len: tl.tensor,
    num_queries: tl.tensor,
    sinks: tl.tensor,
    shared_pages: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    rows: tl.tensor,
    out_stride: tl.tensor,
    out_head_stride: tl.tensor,
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
    BLOCK_S: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    wait(EARLY)
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    _, _, _, low, parts, _ = range_of(
        tl.program_id(0) // WIDTH,
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
    part, column = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    is_there = part < parts
    if SHARED_SPLITS:
        # The same condition as in ``_decode_attention``, which has written these outputs itself.
        if (parts == 1) & (low == 0):
            return
        each = part_of(low, SHARED_SPLITS, LEAST)
        # Parts of the shared prefix are stored after the ``SPLITS`` of a sequence's own tokens.
        is_there = is_there | ((part >= SPLITS) & ((part - SPLITS) * each < low))
    else:
        if parts == 1:
            return
    PARTS: tl.constexpr = SPLITS + SHARED_SPLITS
    is_there = is_there & (part < PARTS)
    place = (token * tl.num_programs(1) + head) * PARTS + part
    weights = partial + rows.to(tl.int64) * (PARTS * DIM) + place
    weight = tl.load(weights, mask=is_there, other=float("-inf"))
    highest = tl.max(weight, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + head) * LOG2E
        highest = tl.maximum(highest, sink)
    # Avoids NaN for a query that sees nothing.
    base = tl.where(highest == float("-inf"), 0.0, highest)
    weight = tl.exp2(weight - base)
    total = tl.sum(weight, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - base)
    answers = tl.load(
        partial + (place * DIM)[:, None] + column[None, :],
        mask=is_there[:, None] & (column < DIM)[None, :],
        other=0.0,
    )
    made = tl.sum(answers * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    target = out + token * out_stride + head * out_head_stride + column
    tl.store(target, made.to(out.dtype.element_ty), mask=column < DIM)
