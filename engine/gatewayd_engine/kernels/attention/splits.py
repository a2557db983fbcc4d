"""Number of KV splits and tile sizes of decode attention, from sizes known at capture time.

A step of few sequences leaves most of a GPU idle unless the parts of each context are attended in
parallel and the partial results merged (Flash-Decoding, Dao et al. 2023). From two programs per
multiprocessor on, splits only cost memory traffic and a merge.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

PROGRAMS_EACH = 2
"""Attention programs per multiprocessor from which on nothing is split, as in FlashInfer's
planner."""
LEAST_TOKENS = 128
"""Least tokens of a part: below that, merging a part takes longer than reading it."""
_MOST_SPLITS = 64
"""Most parts, which one program merges at once in registers."""
_TILE_BYTES = 1 << 14
"""Bytes of the keys that are read at a time."""
_ROWS = 64
"""Most rows of a tile, queries times heads, that one program processes."""
_WIDE = 256
"""Dimensions of a head above which shared memory limits tiles: those of latent attention."""
_QUERY_BYTES = 80 << 10
"""Bytes of a tile's queries of wide heads, beside two tiles of keys of half as much."""
_SMALL_SHARED = ((8, 6), (8, 9), (12, 0), (12, 1))
"""Compute capabilities whose blocks have 99 KiB of shared memory; others have 163 and more."""


class SharedPages(NamedTuple):
    """Pages of a prefix shared by all sequences of a step, which are read once for all of them.

    Attributes:
        num_pages: number of shared pages, 0 for none; each was full before this step. On the
            device, int32, shape ``[1]``.
        splits: most parts into which they are split.
    """

    num_pages: torch.Tensor
    splits: int


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a CUDA device; 1 for any other."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def fills(num_programs: int, multiprocessors: int) -> bool:
    """Whether ``num_programs`` programs fully occupy a device.

    Of 8 key heads, ``fills(33 * 8, 132)`` is False and ``fills(34 * 8, 132)`` is True.
    """
    return num_programs > PROGRAMS_EACH * multiprocessors


def num_splits(num_programs: int, max_len: int, multiprocessors: int) -> int:
    """Return the number of splits of each context that occupies a device with long sequences.

    A power of two, because each number requires a compilation.

    Args:
        num_programs: programs of a launch without splits.
        max_len: tokens of the longest context, or of the longest window.
        multiprocessors: multiprocessors of the device.
    """
    if fills(num_programs, multiprocessors):
        return 1
    wanted = PROGRAMS_EACH * multiprocessors // num_programs
    most = min(wanted, -(-max_len // LEAST_TOKENS), _MOST_SPLITS)
    # Rounded down, so that the bounds above still hold.
    return 1 << max(most, 1).bit_length() - 1


def row_tile(num_rows: int, most: int = _ROWS) -> int:
    """Return the rows of a tile for ``num_rows`` queries times heads: a power of two >= 16.

    Args:
        num_rows: rows of a KV head.
        most: of ``most_rows``.
    """
    return min(max(1 << (num_rows - 1).bit_length(), 16), most)


@cache
def most_rows(head_dim: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return the most rows of a tile, for a head dimension and dtype of queries: 16 to 64."""
    if head_dim <= _WIDE:
        return _ROWS
    budget = _QUERY_BYTES
    if device.type == "cuda" and torch.cuda.get_device_capability(device) in _SMALL_SHARED:
        budget //= 4
    fit = budget // (head_dim * dtype.itemsize)
    return min(max(1 << fit.bit_length() >> 1, 16), _ROWS)


def num_stages(head_dim: int) -> int:
    """Return the tiles of keys that are in flight at once."""
    return 2 if head_dim > _WIDE else 3


def token_tile(block_dim: int, dtype: torch.dtype) -> int:
    """Return the tokens that are read at a time, for a head dimension and dtype of queries."""
    # Of wide heads twice as much at once: rescaling their sums costs as much as a small product.
    size = _TILE_BYTES if block_dim <= _WIDE else 2 * _TILE_BYTES
    return min(max(size // (block_dim * dtype.itemsize), 16), 64)


def scratch_size(num_queries: int, num_heads: int, head_dim: int, splits: int) -> int:
    """Return the numbers of scratch memory that partial results of a launch need.

    Args:
        num_queries: sequences times width.
        num_heads: query heads.
        head_dim: size of a head.
        splits: splits of each context plus those of a shared prefix.
    """
    # An output of ``head_dim`` numbers and a weight for each part.
    return num_queries * num_heads * splits * (head_dim + 1)
