"""Detection of prefixes whose pages several decoding sequences share, so that they are read once.

Sequences with the same system prompt share its pages, through the prefix cache or a fork. Attending
sequence by sequence reads these pages once per sequence; attending all queries to one copy turns
the most expensive read of a step into a matrix product. Source: cascade inference, FlashInfer (Ye
et al. 2024); Hydragen, arXiv 2402.05099.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_SAVED = 1 << 18
"""Least tokens whose repeated reads a layer on a GPU must save to pay for two more launches.

Half of what was measured on an H200: 64 sequences that share 8,192 tokens take 267 instead of
314 us. The gain is small because a prefix of that length stays in the L2 cache."""
_LOYALTY = 2
"""Weight of a prefix in use relative to others: a change costs a copy of the remaining contexts."""

PrefixKey = tuple[int, int]
"""Number of pages of a prefix, and the last of them."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Sequences of a batch whose block tables begin with the same pages.

    Attributes:
        key: identifies the prefix while any sequence references its pages.
        lines: indices of the sequences in the batch, ascending, at least 2.
    """

    key: PrefixKey
    lines: NDArray[np.int64]


def find_shared(
    block_table: NDArray[np.int64],
    full: NDArray[np.int64],
    least_gain: int,
    held: Collection[PrefixKey] = (),
) -> list[SharedPrefix]:
    """Choose prefixes greedily, the one that saves most pages first; no sequence gets two.

    Args:
        block_table: pages of each sequence, shape ``[n, pages]``.
        full: number of complete pages of each sequence, which are not written any more, shape
            ``[n]``.
        least_gain: least pages that a step must save for a prefix to be used.
        held: prefixes in use, which are kept unless another one saves far more.
    """
    if len(full) < 2:
        return []
    width = block_table.shape[1]
    # -1 for pages that may still be written, and later for those of assigned sequences.
    free = np.where(np.arange(width) < full[:, None], block_table, -1)
    # Every page stands for the prefix that ends with it; sequences that have it usually share all
    # of it.
    pages, at, inverse, counts = np.unique(
        free, return_index=True, return_inverse=True, return_counts=True
    )
    lengths = at % width + 1
    # Counts only decrease as sequences are assigned: a prefix below the threshold stays below.
    can_gain = (pages >= 0) & ((counts - 1) * lengths >= least_gain)
    if not can_gain.any():
        return []
    pages, lengths, counts = pages[can_gain], lengths[can_gain], counts[can_gain]
    # Pages that are no candidates are counted in an additional bin.
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
        # No candidate is considered twice, so the loop ends.
        counts[best] = 0
        having = np.flatnonzero(free[:, num_pages - 1] == page)
        if not len(having):
            continue
        # The same page at another index, or after other pages, is not the same prefix.
        lines = having[(free[having, :num_pages] == free[having[0], :num_pages]).all(1)]
        if (len(lines) - 1) * num_pages >= least_gain:
            # Subtract the assigned sequences from all candidates that they contain.
            counts -= np.bincount(candidates[lines].ravel(), minlength=len(pages) + 1)[:-1]
            free[lines] = -1
            found.append(SharedPrefix((num_pages, page), lines))


def shared_pages(block_table: NDArray[np.int64], full: NDArray[np.int64]) -> int:
    """Return the number of leading pages that all sequences share.

    Args:
        block_table: pages of each sequence, at least one, shape ``[n, pages]``.
        full: number of complete pages of each sequence, shape ``[n]``.
    """
    most = int(full.min())
    same = (block_table[:, :most] == block_table[0, :most]).all(0)
    return most if same.all() else int(same.argmin())
