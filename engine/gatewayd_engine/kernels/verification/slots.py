"""Inputs of sequences with drafts, padded to the same number of slots, in one Triton kernel.

Latency-bound. A program processes a block of a sequence's pages, and the first one all of its
slots.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 256


def slots(
    rows: torch.Tensor,
    counts: torch.Tensor,
    starts: torch.Tensor,
    page_indptr: torch.Tensor,
    given: torch.Tensor,
    depths: torch.Tensor,
    last_tokens: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
    scratch: int,
    ids: torch.Tensor,
    positions: torch.Tensor,
    write: torch.Tensor,
    pages: torch.Tensor,
) -> None:
    """See ``base``."""
    lines = len(rows)
    if lines == 0:
        return
    width = len(ids) // lines
    _slots[(lines, triton.cdiv(max(width, block_table.shape[1]), _BLOCK))](
        rows,
        counts,
        starts,
        page_indptr,
        given,
        depths,
        last_tokens,
        block_table,
        block_table.stride(0),
        page_size,
        scratch,
        width,
        ids,
        positions,
        write,
        pages,
        BLOCK=_BLOCK,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["width"])
def _slots(
    rows: tl.tensor,
    counts: tl.tensor,
    starts: tl.tensor,
    page_indptr: tl.tensor,
    given: tl.tensor,
    depths: tl.tensor,
    last_tokens: tl.tensor,
    block_table: tl.tensor,
    table_stride: tl.tensor,
    page_size: tl.tensor,
    scratch: tl.tensor,
    width: tl.tensor,
    ids: tl.tensor,
    positions: tl.tensor,
    write: tl.tensor,
    pages: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    line = tl.program_id(0)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + line).to(tl.int64)
    table = block_table + row * table_stride

    first_page = tl.load(page_indptr + line)
    has_page = index < tl.load(page_indptr + line + 1) - first_page
    tl.store(pages + first_page + index, tl.load(table + index, mask=has_page), mask=has_page)

    is_slot = index < width
    is_real = index < tl.load(counts + line)
    slot = line * width + index
    start = tl.load(starts + line).to(tl.int64)
    # -1 stands for the row's last token, which may be on the device only.
    uploaded = tl.load(given + slot, mask=is_real, other=0)
    chosen = tl.where(uploaded >= 0, uploaded, tl.load(last_tokens + row).to(tl.int32))
    tl.store(ids + slot, chosen.to(tl.int64), mask=is_slot)
    depth = tl.load(depths + slot, mask=is_real, other=0)
    tl.store(positions + slot, tl.where(is_real, start + depth, 0), mask=is_slot)
    # KV slots follow each other in the order of slots, whatever their depth in the tree.
    place = tl.where(is_real, start, 0) + index
    page = tl.load(table + place // page_size, mask=is_real, other=0).to(tl.int64)
    page = tl.where(is_real, page, scratch)
    tl.store(write + slot, page * page_size + place % page_size, mask=is_slot)
