"""Cached pages by the page before them, for matches that end within a page.

A strategy such as ``hash`` matches full pages. Tokens after the last one that matches would be
computed by every sequence, though a cached page begins with them: half a page on average where
prompts begin alike, for each turn of a conversation, and for each branch of a program.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Before: TypeAlias = int | bytes
"""The page before a page, or the salt of a sequence whose first page it is."""


class _Page(NamedTuple):
    tokens: bytes
    page: int


class FollowingPages:
    """Index of full and partially filled pages by predecessor, which is cached too, and tokens.

    Those after the same page are sorted by their tokens' bytes, so the one with the longest common
    prefix is a neighbour of the insertion point.
    """

    def __init__(self) -> None:
        self._behind: dict[Before, list[_Page]] = {}
        self._before: dict[int, tuple[Before, _Page]] = {}  # by page

    def __len__(self) -> int:
        return len(self._before)

    @property
    def predecessors(self) -> set[int]:
        """Pages that have others behind them."""
        return {before for before in self._behind if isinstance(before, int)}

    def find(self, before: Before, tokens: NDArray[np.int32]) -> tuple[int, int]:
        """Find the page with the longest common prefix with some tokens.

        Args:
            before: page before the tokens, or the salt.
            tokens: ids, shape ``[n]``.

        Returns:
            The page and the length of the common prefix, ``(-1, 0)`` if there is none.
        """
        pages = self._behind.get(before)
        if not pages:
            return -1, 0
        # Page -1 sorts before all pages, so one of equal tokens is at this index.
        at = bisect_left(pages, _Page(tokens.tobytes(), -1))
        found = -1, 0
        for near in pages[max(at - 1, 0) : at + 1]:
            common = common_length(np.frombuffer(near.tokens, np.int32), tokens)
            if common > found[1]:
                found = near.page, common
        return found

    def add(self, before: Before, tokens: NDArray[np.int32], page: int) -> None:
        """Add a page with these tokens; it must not be indexed yet."""
        added = _Page(tokens.tobytes(), page)
        insort(self._behind.setdefault(before, []), added)
        self._before[page] = before, added

    def num_tokens(self, page: int) -> int | None:
        """Return the number of tokens in a page; None for pages that are not indexed."""
        found = self._before.get(page)
        return None if found is None else len(found[1].tokens) // np.dtype(np.int32).itemsize

    def discard(self, page: int) -> None:
        """Remove a page that was evicted or reused, and the pages after it."""
        if page in self._before:
            before, own = self._before.pop(page)
            pages = self._behind[before]
            del pages[bisect_left(pages, own)]
            if not pages:
                del self._behind[before]
        # They are found by the number of this page, which is about to hold other tokens.
        for each in self._behind.pop(page, ()):
            del self._before[each.page]

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
