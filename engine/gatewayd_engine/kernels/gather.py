"""Inputs of a step, built on the device by one Triton kernel.

Latency-bound: a few integers per token. A program processes a block of a sequence's tokens and the
block of its pages with the same index; most programs have neither and exit at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.early_launch import wait

_BLOCK = 256


def gather(
    rows: torch.Tensor,
    query_indptr: torch.Tensor,
    page_indptr: torch.Tensor,
    starts: torch.Tensor,
    given: torch.Tensor,
    last_tokens: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
    max_tokens: int,
    ids: torch.Tensor,
    positions: torch.Tensor,
    write: torch.Tensor,
    pages: torch.Tensor,
    *,
    early: bool = False,
) -> None:
    """See ``base``."""
    if len(rows) == 0:
        return
    # From shapes alone, so that a captured step serves any number of pages.
    most = max(max_tokens, block_table.shape[1])
    _gather[(len(rows), triton.cdiv(most, _BLOCK))](
        rows,
        query_indptr,
        page_indptr,
        starts,
        given,
        last_tokens,
        block_table,
        block_table.stride(0),
        page_size,
        ids,
        positions,
        write,
        pages,
        BLOCK=_BLOCK,
        EARLY=early,
        num_warps=4,
        launch_pdl=early,
    )


@triton.jit
def _gather(
    rows: tl.tensor,
    query_indptr: tl.tensor,
    page_indptr: tl.tensor,
    starts: tl.tensor,
    given: tl.tensor,
    last_tokens: tl.tensor,
    block_table: tl.tensor,
    table_stride: tl.tensor,
    page_size: tl.tensor,
    ids: tl.tensor,
    positions: tl.tensor,
    write: tl.tensor,
    pages: tl.tensor,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    wait(EARLY)
    line = tl.program_id(0)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + line).to(tl.int64)
    table = block_table + row * table_stride

    first_page = tl.load(page_indptr + line)
    has_page = index < tl.load(page_indptr + line + 1) - first_page
    tl.store(pages + first_page + index, tl.load(table + index, mask=has_page), mask=has_page)

    first = tl.load(query_indptr + line)
    has_token = index < tl.load(query_indptr + line + 1) - first
    token = first + index
    # -1 stands for the token that the previous step sampled, which the host may not have seen yet.
    uploaded = tl.load(given + token, mask=has_token, other=0)
    chosen = tl.where(uploaded >= 0, uploaded, tl.load(last_tokens + row).to(tl.int32))
    tl.store(ids + token, chosen.to(tl.int64), mask=has_token)
    position = tl.load(starts + line) + index
    tl.store(positions + token, position.to(tl.int64), mask=has_token)
    page = tl.load(table + position // page_size, mask=has_token, other=0).to(tl.int64)
    tl.store(write + token, page * page_size + position % page_size, mask=has_token)
