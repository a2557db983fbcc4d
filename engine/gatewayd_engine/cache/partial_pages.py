"""Partially filled last pages of ended sequences, found by the page before them.

A prefix cache holds full pages only. Tokens after the last full page of a sequence would be
recomputed by every sequence that continues it: half a page on average for each turn of a
conversation, and for each branch of a program.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Before: TypeAlias = int | bytes
"""The page before a tail, or the salt of a sequence whose first page is partial."""


class _Tail(NamedTuple):
    tokens: bytes
    page: int


class PartialPages:
    """Index of partial pages ("tails") by predecessor and tokens.

    Tails after the same page are sorted by their tokens' bytes, so the one with the longest common
    prefix is a neighbour of the insertion point.
    """

    def __init__(self) -> None:
        self._behind: dict[Before, list[_Tail]] = {}
        self._before: dict[int, tuple[Before, _Tail]] = {}  # by the tail's page

    def __len__(self) -> int:
        return len(self._before)

    def find(self, before: Before, tokens: NDArray[np.int32]) -> tuple[int, int]:
        """Find the partial page with the longest common prefix with some tokens.

        Args:
            before: page before the tokens, or the salt.
            tokens: ids, shape ``[n]``.

        Returns:
            The page and the length of the common prefix, ``(-1, 0)`` if there is none.
        """
        tails = self._behind.get(before)
        if not tails:
            return -1, 0
        # Page -1 sorts before all pages, so a tail of equal tokens is at this index.
        at = bisect_left(tails, _Tail(tokens.tobytes(), -1))
        found = -1, 0
        for tail in tails[max(at - 1, 0) : at + 1]:
            common = common_length(np.frombuffer(tail.tokens, np.int32), tokens)
            if common > found[1]:
                found = tail.page, common
        return found

    def add(self, before: Before, tokens: NDArray[np.int32], page: int) -> None:
        """Add a partial page with these tokens; it must not be indexed yet."""
        tail = _Tail(tokens.tobytes(), page)
        insort(self._behind.setdefault(before, []), tail)
        self._before[page] = before, tail

    def num_tokens(self, page: int) -> int | None:
        """Return the number of tokens in a partial page; None for other pages."""
        found = self._before.get(page)
        return None if found is None else len(found[1].tokens) // np.dtype(np.int32).itemsize

    def discard(self, page: int) -> None:
        """Remove a page that was evicted or reused, and the partial pages after it."""
        if page in self._before:
            before, tail = self._before.pop(page)
            tails = self._behind[before]
            del tails[bisect_left(tails, tail)]
            if not tails:
                del self._behind[before]
        # They are found by the number of this page, which is about to hold other tokens.
        for tail in self._behind.pop(page, ()):
            del self._before[tail.page]

    def clear(self) -> None:
        """Remove all pages."""
        self._behind.clear()
        self._before.clear()


def common_length(some: NDArray[np.int32], others: NDArray[np.int32]) -> int:
    """Return the length of the common prefix of two token arrays."""
    length = min(len(some), len(others))
    if not length:
        return 0
    differs = some[:length] != others[:length]
    first = int(differs.argmax())
    return first if differs[first] else length
