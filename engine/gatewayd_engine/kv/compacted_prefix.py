"""What stands for the first tokens of sequences whose keys and values have become fewer.

Such a sequence keeps its tokens and their positions, but in the pool it is shorter: first the few,
then whatever follows what they stand for. Its list of pages goes by tokens: it begins with the
pages of the few, behind them are those with their biases, and then ``NO_PAGE`` up to the tokens
that are not covered. Block tables go by places in the pool, and have neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NO_PAGE = -1
"""In a sequence's list of pages: where pages were that it has given back."""


@dataclass(frozen=True, slots=True, eq=False)
class CompactedPrefix:
    """The few of one sequence; equal to itself only.

    Attributes:
        covered: tokens that they stand for, whole pages.
        kept: how many they are, whole pages.
        bias: pages that hold a bias for each of them, in each layer and head.
    """

    covered: int
    kept: int
    bias: tuple[int, ...]

    @property
    def shift(self) -> int:
        """How much further in front tokens behind it are in the pool."""
        return self.covered - self.kept

    def num_absent(self, page_size: int) -> int:
        """Pages that its sequence does without."""
        return self.shift // page_size - len(self.bias)


@dataclass(frozen=True, slots=True)
class CompactedPrefixes:
    """Those of the lines of a batch; None for a line that has none.

    Attributes:
        of: by line.
        shift: 0 for a line that has none, shape ``[n]``.
    """

    of: list[CompactedPrefix | None]
    shift: NDArray[np.int64]

    @classmethod
    def make(cls, of: list[CompactedPrefix | None]) -> CompactedPrefixes:
        """With what follows from them."""
        return cls(of, np.array([0 if front is None else front.shift for front in of], np.int64))


def only_pages(pages: Iterable[int]) -> list[int]:
    """Those of a sequence's list that are there."""
    return [page for page in pages if page != NO_PAGE]
