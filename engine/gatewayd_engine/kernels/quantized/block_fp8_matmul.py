"""Block-scaled FP8 matmul in Triton: 8-bit floats with 8-bit floats, both scaled by group.

Tensor cores sum a group's 128 products; each such sum is scaled and accumulated in float32. The
scales require that, and it keeps precision that the tensor cores' own accumulation of 8-bit floats
would lose over many columns. Products of few tokens are memory-bound: they use narrow tiles and
split-K, as ``packed_matmul`` does. Source of the format: DeepSeek-V3 (arXiv 2412.19437,
section 3.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from gatewayd_engine.kernels.quantized.block_scales import GROUP
from gatewayd_engine.kernels.quantized.scratch import MOST_LINES, ROWS, splits
from gatewayd_engine.kernels.quantized.split_k import store_sums

if TYPE_CHECKING:
    from gatewayd_engine.kernels.quantized.base import QuantizedRows
    from gatewayd_engine.kernels.quantized.block_scales import Blocks
    from gatewayd_engine.kernels.quantized.scratch import DequantizeScratch

_MULTIPROCESSORS = 132
"""Multiprocessors of an H200: fewer large tiles than these leave some of them idle."""
_BAND = 8
"""Tiles of tokens that run concurrently, so that they share the cached rows of the weight."""


def block_mm(
    x: QuantizedRows,
    weight: Blocks,
    bias: torch.Tensor | None,
    scratch: DequantizeScratch,
    out: torch.Tensor,
) -> None:
    """See ``base``."""
    m = len(x.scales)
    if m:
        _launch(x, weight, bias, scratch, out, _tile(m, weight))


def block_mm_tiles(
    x: QuantizedRows,
    weight: Blocks,
    bias: torch.Tensor | None,
    scratch: DequantizeScratch,
    out: torch.Tensor,
) -> None:
    """See ``base``."""
    for tile in _tiles(weight):
        _launch(x, weight, bias, scratch, out, tile)


def _launch(
    x: QuantizedRows,
    weight: Blocks,
    bias: torch.Tensor | None,
    scratch: DequantizeScratch,
    out: torch.Tensor,
    tile: tuple[int, int, int],
) -> None:
    m, rows, (tall, wide, parts) = len(x.scales), weight.rows, tile
    lines = triton.cdiv(m, tall)
    _block_mm[(lines * triton.cdiv(rows, wide), parts)](
        x.codes,
        x.scales,
        weight.codes,
        weight.scales,
        # A placeholder, which HAS_BIAS leaves unread.
        out if bias is None else bias,
        out,
        scratch.partial,
        scratch.arrived,
        m,
        rows,
        weight.columns,
        weight.scales.shape[0],
        weight.scales.shape[1],
        out.stride(0),
        TALL=weight.tall,
        GROUP=GROUP,
        HAS_BIAS=bias is not None,
        SPLITS=parts,
        BAND=_BAND,
        BLOCK_M=tall,
        BLOCK_N=wide,
        num_warps=8 if tall * wide > 64 * 128 else 4,
        num_stages=4,
    )


def _tiles(weight: Blocks) -> tuple[tuple[int, int, int], ...]:
    """Return all tiles: the tokens and rows of a program's output, and the split-K factor.

    Two for few tokens, then those for many, the smallest last.
    """
    # Split-K for few tokens only: many have enough tiles, and partial sums would grow with them.
    parts = splits(weight)
    return (16, ROWS, parts), (32, ROWS, parts), (128, 128, 1), (64, 128, 1), (64, 64, 1)


def _tile(m: int, weight: Blocks) -> tuple[int, int, int]:
    """Choose the tile for a product of ``m`` tokens."""
    few, more, *large, small = _tiles(weight)
    if m <= MOST_LINES:
        return few if m <= few[0] else more
    # The largest tile that still gives every multiprocessor some work.
    for tile in large:
        tall, wide, _ = tile
        if triton.cdiv(m, tall) * triton.cdiv(weight.rows, wide) >= _MULTIPROCESSORS:
            return tile
    return small


# The number of tokens changes with each step; 1 and multiples of 16 would be compiled separately.
@triton.jit(do_not_specialize=["m"])
def _block_mm(
    x: tl.tensor,
    x_scales: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    arrived: tl.tensor,
    m: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    groups: tl.tensor,
    blocks: tl.tensor,
    out_stride: tl.tensor,
    TALL: tl.constexpr,
    GROUP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    BAND: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    # Programs are ordered in bands of token tiles; each band covers all rows in sequence.
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(rows, BLOCK_N)
    first = tl.program_id(0) // (BAND * tiles_n) * BAND
    inside = tl.program_id(0) % (BAND * tiles_n)
    high = tl.minimum(tiles_m - first, BAND)
    tile_n = inside // high
    line = (first + inside % high) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_line = row < rows, line < m
    lane = tl.arange(0, GROUP)
    from_x = x + line.to(tl.int64)[:, None] * columns + lane[None, :]
    from_codes = codes + row.to(tl.int64)[None, :] * columns + lane[:, None]
    from_x_scales = x_scales + line.to(tl.int64) * groups
    from_scales = scales + row // TALL
    split = tl.program_id(1)
    each = (groups + SPLITS - 1) // SPLITS
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for group in range(split * each, tl.minimum(split * each + each, groups)):
        given = tl.load(from_x + group * GROUP, mask=is_line[:, None], other=0.0)
        code = tl.load(from_codes + group * GROUP, mask=is_row[None, :], other=0.0)
        mine = tl.load(from_x_scales + group, mask=is_line, other=0.0)
        theirs = tl.load(from_scales + group * blocks, mask=is_row, other=0.0)
        # One block has one scale on each side, so 128 products are summed before they are scaled.
        acc += tl.dot(given, code) * (mine[:, None] * theirs[None, :])

    writes = is_line[:, None] & is_row[None, :]
    target = out + line.to(tl.int64)[:, None] * out_stride + row[None, :]
    added = tl.zeros((BLOCK_N,), tl.float32)
    if HAS_BIAS:
        added = tl.load(bias + row, mask=is_row, other=0.0).to(tl.float32)
    # With split-K one tile holds all tokens, so that a counter for each tile of rows suffices.
    place = line[:, None] * rows + row[None, :]
    size = BLOCK_M * rows
    counter = arrived + tile_n
    store_sums(acc, added, target, writes, place, size, partial, counter, split, SPLITS)
