"""Compacted prefixes: fewer keys and values in place of those of a sequence's first tokens.

Such a sequence keeps its tokens and their positions, but occupies fewer KV slots: first the
compacted ones, then those of the remaining tokens. Its page list is indexed by tokens: first the
pages of the compacted keys and values, then those of their biases, then ``NO_PAGE`` up to the
remaining tokens. Block tables are indexed by KV slots, and contain neither biases nor ``NO_PAGE``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NO_PAGE = -1
"""Entry of a sequence's page list for a page that was released by compaction."""


@dataclass(frozen=True, slots=True, eq=False)
class CompactedPrefix:
    """Compacted prefix of one sequence; compared by identity.

    Attributes:
        covered: tokens that it replaces, in whole pages.
        kept: keys and values that replace them, in whole pages.
        bias: pages that hold a bias for each of these, in each layer and head.
    """

    covered: int
    kept: int
    bias: tuple[int, ...]

    @property
    def shift(self) -> int:
        """Difference between token positions and KV slots after the prefix."""
        return self.covered - self.kept

    def num_absent(self, page_size: int) -> int:
        """Return the number of ``NO_PAGE`` entries in the sequence's page list."""
        return self.shift // page_size - len(self.bias)


@dataclass(frozen=True, slots=True)
class CompactedPrefixes:
    """Compacted prefixes of the entries of a batch.

    Attributes:
        of: by batch entry; None for an entry without one.
        shift: shift of each entry, 0 for one without a compacted prefix, shape ``[n]``.
    """

    of: list[CompactedPrefix | None]
    shift: NDArray[np.int64]

    @classmethod
    def make(cls, of: list[CompactedPrefix | None]) -> CompactedPrefixes:
        """Create it from the prefixes of the entries."""
        return cls(of, np.array([0 if front is None else front.shift for front in of], np.int64))


def only_pages(pages: Iterable[int]) -> list[int]:
    """Return a sequence's page list without ``NO_PAGE`` entries."""
    return [page for page in pages if page != NO_PAGE]
