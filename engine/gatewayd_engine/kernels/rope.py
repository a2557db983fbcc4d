"""Rotary embedding fused with the append to the paged KV pool, in one Triton kernel.

Memory-bound: queries are read and written once, keys and values read once and written to their
pages. A program processes a few heads of a token, so that a batch of one still occupies several
multiprocessors.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.early_launch import wait

_HEADS = 4
"""Heads that one program processes."""
_NARROW = 256
"""Most numbers of a head that a single warp processes."""


def rope_append(
    heads: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    write: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    num_heads: int,
    keeps_keys: bool = False,
    first: int = 0,
    *,
    early: bool = False,
) -> None:
    """See ``base``."""
    num_tokens, all_heads, dim = heads.shape
    if num_tokens == 0:
        return
    pages = pool.select(1, layer)
    kv_heads = pages.shape[3]
    block = triton.next_power_of_2(dim)
    _rope_append[(num_tokens, triton.cdiv(all_heads, _HEADS))](
        heads,
        table,
        positions,
        write,
        pages,
        num_heads,
        kv_heads,
        all_heads,
        # Heads that are written back: queries, and keys only where a caller reads them unpaged.
        num_heads + kv_heads if keeps_keys else num_heads,
        dim,
        table.shape[1],
        pages.shape[2],
        heads.stride(0),
        heads.stride(1),
        table.stride(0),
        pages.stride(0),
        pages.stride(1),
        pages.stride(2),
        pages.stride(3),
        HEADS=_HEADS,
        # 0 marks a pool of the activations' own dtype, which needs no saturation.
        MOST=0.0 if pool.dtype == heads.dtype else torch.finfo(pool.dtype).max,
        FIRST=first,
        BLOCK=block,
        EARLY=early,
        # Of latents, records are wide.
        num_warps=1 if block <= _NARROW else 4,
        launch_pdl=early,
    )


@triton.jit
def _rope_append(
    heads: tl.tensor,
    table: tl.tensor,
    positions: tl.tensor,
    write: tl.tensor,
    pages: tl.tensor,
    num_heads: tl.tensor,
    kv_heads: tl.tensor,
    all_heads: tl.tensor,
    num_in_place: tl.tensor,
    dim: tl.tensor,
    num_turned: tl.tensor,
    page_size: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    table_stride: tl.tensor,
    page_stride: tl.tensor,
    kv_stride: tl.tensor,
    offset_stride: tl.tensor,
    kv_head_stride: tl.tensor,
    HEADS: tl.constexpr,
    MOST: tl.constexpr,
    FIRST: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    is_turned = (column >= FIRST) & (column < FIRST + num_turned)
    inside = (head < all_heads) & (column < dim)
    if FIRST > 0:
        # Of wide queries the larger part stays as it is.
        inside = inside & (is_turned | (head >= num_heads))
    wait(EARLY)
    source = heads + token * token_stride + head * head_stride + column
    value = tl.load(source, mask=inside, other=0.0)

    # The dimensions of a pair are adjacent, see ``interleave_pairs``, and so are its numbers here.
    angle = table + tl.load(positions + token) * table_stride + column - FIRST
    turn = tl.load(angle, mask=is_turned, other=0.0)
    cos, sin = tl.split(tl.reshape(turn, (1, BLOCK // 2, 2)))
    even, odd = tl.split(tl.reshape(value.to(tl.float32), (HEADS, BLOCK // 2, 2)))
    joined = tl.join(even * cos - odd * sin, even * sin + odd * cos)
    rotated = tl.reshape(joined, (HEADS, BLOCK)).to(heads.dtype.element_ty)
    is_value = head >= num_heads + kv_heads
    # Selected rather than multiplied by one, so that infinities stay infinite.
    rotated = tl.where(is_value | ~is_turned, value, rotated)

    # Queries stay in place; keys and values go to their KV slot.
    tl.store(source, rotated, mask=inside & (head < num_in_place))
    place = tl.load(write + token)
    page = pages + place // page_size * page_stride + place % page_size * offset_stride
    # Negative for queries, which the masks below leave out.
    kv_head = head - num_heads - tl.where(is_value, kv_heads, 0)
    target = page + tl.where(is_value, kv_stride, 0) + kv_head * kv_head_stride + column
    if MOST > 0.0:
        # 8-bit floats saturate; selected rather than clamped, so that NaN stays NaN.
        kept = rotated.to(tl.float32)
        kept = tl.where(kept > MOST, MOST, tl.where(kept < -MOST, -MOST, kept))
        tl.store(target, kept.to(pages.dtype.element_ty), mask=inside & (head >= num_heads))
    else:
        tl.store(target, rotated, mask=inside & (head >= num_heads))
