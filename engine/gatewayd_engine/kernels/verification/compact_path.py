"""Compaction of the KV slots of accepted tree paths, in one Triton kernel.

Moves a few kilobytes per layer and accepted token, and nothing where the path is a chain. A program
processes a block of one layer's keys or values, token by token: a thread reads and writes the same
elements of each token, so nothing is overwritten before it has been read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def compact_path(
    packed: torch.Tensor,
    rows: torch.Tensor,
    starts: torch.Tensor,
    block_table: torch.Tensor,
    pool: torch.Tensor,
) -> None:
    """See ``base``."""
    if len(packed) == 0:
        return
    # As integers: bits are moved, whatever the dtype.
    words = pool.view(_WORDS[pool.itemsize])
    _, layers, halves, page_size, heads, dim = words.shape
    size = heads * dim
    _compact_path[(len(packed), layers * halves, triton.cdiv(size, _BLOCK))](
        packed,
        packed.stride(0),
        packed.shape[1] // 2,
        rows,
        starts,
        block_table,
        block_table.stride(0),
        page_size,
        words,
        words.stride(0),
        words.stride(2),
        size,
        BLOCK=_BLOCK,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["packed_stride", "width"])
def _compact_path(
    packed: tl.tensor,
    packed_stride: tl.tensor,
    width: tl.tensor,
    rows: tl.tensor,
    starts: tl.tensor,
    block_table: tl.tensor,
    table_stride: tl.tensor,
    page_size: tl.tensor,
    words: tl.tensor,
    page_stride: tl.tensor,
    half_stride: tl.tensor,
    size: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    line = tl.program_id(0).to(tl.int64)
    half = tl.program_id(1).to(tl.int64)
    index = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    own = packed + line * packed_stride
    table = block_table + tl.load(rows + line).to(tl.int64) * table_stride
    start = tl.load(starts + line)
    part = words + half * half_stride + index
    # In ascending order. Nodes are at least their ranks and ascend along the path, so a target is
    # never the source of a later move.
    for rank in range(1, tl.load(own)):
        node = tl.load(own + 1 + width + rank)
        source, target = start + node, start + rank
        page = tl.load(table + source // page_size).to(tl.int64)
        to = tl.load(table + target // page_size).to(tl.int64)
        moves = inside & (node != rank)
        word = tl.load(part + page * page_stride + (source % page_size) * size, mask=moves)
        tl.store(part + to * page_stride + (target % page_size) * size, word, mask=moves)
