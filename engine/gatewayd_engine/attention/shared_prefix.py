"""Finds which decoding sequences begin with the same pages, so that those are read once.

Sequences that share a system prompt share its pages, by the prefix cache or by a fork. Attending
to them line by line reads them as often as there are lines; attending once, all queries against
one copy, turns the most expensive read of a step into a matrix product. Source: cascade
inference, FlashInfer (Ye et al. 2024); Hydragen, arXiv 2402.05099.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_SAVED = 1 << 18
"""Tokens that a layer of a GPU must not read again for two launches more to be worth it.

Half of what was measured on an H200: 64 lines that share 8,192 tokens take 267 instead of 314 us.
That is little, because a prefix of that length stays in the cache of the chip."""
_LOYALTY = 2
"""A prefix in use counts for so much more than another: changing costs a copy of the rest."""

PrefixKey = tuple[int, int]
"""How many pages a prefix has, and the last of them."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Lines of a batch whose block tables begin alike.

    Attributes:
        key: names the prefix while any sequence holds its pages.
        lines: of the batch, ascending, at least 2.
    """

    key: PrefixKey
    lines: NDArray[np.int64]


def find_shared(
    block_table: NDArray[np.int64],
    full: NDArray[np.int64],
    least_gain: int,
    held: Collection[PrefixKey] = (),
) -> list[SharedPrefix]:
    """Choose prefixes greedily, the one that saves most pages first; no line gets two.

    Args:
        block_table: pages of each line, shape ``[n, pages]``.
        full: how many of a line's pages are complete, so that nobody writes to them any more,
            shape ``[n]``.
        least_gain: pages that a step must read less to be worth it.
        held: prefixes in use, kept unless another one saves far more.
    """
    if len(full) < 2:
        return []
    width = block_table.shape[1]
    free = np.where(np.arange(width) < full[:, None], block_table, -1)
    pages, at, inverse, counts = np.unique(
        free, return_index=True, return_inverse=True, return_counts=True
    )
    lengths = at % width + 1
    # Counts only fall while lines are taken, so what is not worth it now never will be.
    can_gain = (pages >= 0) & ((counts - 1) * lengths >= least_gain)
    if not can_gain.any():
        return []
    pages, lengths, counts = pages[can_gain], lengths[can_gain], counts[can_gain]
    candidate_of = np.full(len(can_gain), len(pages))
    candidate_of[can_gain] = np.arange(len(pages))
    candidates = candidate_of[inverse].reshape(free.shape)
    loyalty = np.ones(len(pages), np.int64)
    for num_pages, last in held:
        loyalty[(pages == last) & (lengths == num_pages)] = _LOYALTY
    found: list[SharedPrefix] = []
    while True:
        gain = (counts - 1) * lengths
        preferred = np.where(gain < least_gain, 0, gain * loyalty)
        best = int(preferred.argmax())
        if not preferred[best]:
            return found
        page, num_pages = int(pages[best]), int(lengths[best])
        counts[best] = 0
        having = np.flatnonzero(free[:, num_pages - 1] == page)
        if not len(having):
            continue
        # The same page in another place, or after other pages, is not the same beginning.
        lines = having[(free[having, :num_pages] == free[having[0], :num_pages]).all(1)]
        if (len(lines) - 1) * num_pages >= least_gain:
            counts -= np.bincount(candidates[lines].ravel(), minlength=len(pages) + 1)[:-1]
            free[lines] = -1
            found.append(SharedPrefix((num_pages, page), lines))


def shared_pages(block_table: NDArray[np.int64], full: NDArray[np.int64]) -> int:
    """How many pages all lines begin with.

    Args:
        block_table: pages of each line, at least one line, shape ``[n, pages]``.
        full: how many of a line's pages nobody writes to any more, shape ``[n]``.
    """
    most = int(full.min())
    same = (block_table[:, :most] == block_table[0, :most]).all(0)
    return most if same.all() else int(same.argmin())
