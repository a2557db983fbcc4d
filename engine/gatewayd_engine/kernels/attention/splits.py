"""Into how many parts decode attention splits contexts, from sizes that are known at a capture.

A step of few lines leaves most of a GPU idle unless each context is attended in parts at once and
the partial answers are merged (Flash-Decoding, Dao et al. 2023). From two programs for each
multiprocessor on the parts only cost memory traffic and a merge.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

PROGRAMS_EACH = 2
"""Programs of attention that a multiprocessor runs at a time: FlashInfer's planner takes the same,
and splits nothing beyond."""
LEAST_TOKENS = 128
"""Tokens of a part, at least: below that it takes longer to merge a part than to read it."""
_MOST_SPLITS = 64
"""Parts that one program merges at once, with their numbers in registers."""
_TILE_BYTES = 1 << 14
"""Of the keys that are read at a time."""
_ROWS = 64
"""Queries times heads that one program attends."""


class SharedPages(NamedTuple):
    """Pages that all lines of a step begin with, which are read once for all of them.

    Attributes:
        num_pages: how many there are, 0 for none; each was full before this step. On the device,
            int32, shape ``[1]``.
        splits: how many parts they are split into, at most.
    """

    num_pages: torch.Tensor
    splits: int


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a CUDA device; 1 for any other."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def fills(num_programs: int, multiprocessors: int) -> bool:
    """Whether so many programs keep a device busy.

    Of 8 key heads, ``fills(33 * 8, 132)`` is False and ``fills(34 * 8, 132)`` is True.
    """
    return num_programs > PROGRAMS_EACH * multiprocessors


def num_splits(num_programs: int, max_len: int, multiprocessors: int) -> int:
    """Parts of each context, so that a device is busy when all lines are long.

    A power of two, because each number is compiled anew.

    Args:
        num_programs: of a launch that splits nothing.
        max_len: tokens of the longest context, or of the longest window.
        multiprocessors: of the device.
    """
    if fills(num_programs, multiprocessors):
        return 1
    wanted = PROGRAMS_EACH * multiprocessors // num_programs
    most = min(wanted, -(-max_len // LEAST_TOKENS), _MOST_SPLITS)
    return 1 << max(most, 1).bit_length() - 1


def row_tile(num_rows: int) -> int:
    """Rows of a tile of ``num_rows`` queries times heads: a power of two from 16 on."""
    return min(max(1 << (num_rows - 1).bit_length(), 16), _ROWS)


def token_tile(block_dim: int, dtype: torch.dtype) -> int:
    """Tokens that are read at a time, of heads of so many numbers and queries of this type."""
    return min(max(_TILE_BYTES // (block_dim * dtype.itemsize), 16), 64)


def scratch_size(num_queries: int, num_heads: int, head_dim: int, splits: int) -> int:
    """Numbers that partial answers of a launch take.

    Args:
        num_queries: lines times width.
        num_heads: query heads.
        head_dim: size of a head.
        splits: parts of each context and, behind them, those of a shared prefix.
    """
    return num_queries * num_heads * splits * (head_dim + 1)
