"""Pages that ended sequences leave filled in part, found by the page before them.

A prefix cache knows full pages. What is behind the last one of a sequence would be computed again
by whoever goes on from there: an average of half a page for each turn of a conversation, and for
each branch of a program.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Before: TypeAlias = int | bytes
"""The page before a tail, or the salt of a sequence that has no other page."""


class _Tail(NamedTuple):
    tokens: bytes
    page: int


class PartialPages:
    """What stands in such pages.

    Tails behind the same page are sorted by their tokens' bytes, so the one that has most in
    common with others is a neighbour of where these would stand.
    """

    def __init__(self) -> None:
        self._behind: dict[Before, list[_Tail]] = {}
        self._before: dict[int, tuple[Before, _Tail]] = {}  # by the tail's page

    def __len__(self) -> int:
        return len(self._before)

    def find(self, before: Before, tokens: NDArray[np.int32]) -> tuple[int, int]:
        """Find the page that begins with most of some tokens.

        Args:
            before: what they stand behind.
            tokens: ids, shape ``[n]``.

        Returns:
            The page and how many of the tokens it begins with, ``(-1, 0)`` if there is none.
        """
        tails = self._behind.get(before)
        if not tails:
            return -1, 0
        at = bisect_left(tails, _Tail(tokens.tobytes(), -1))
        found = -1, 0
        for tail in tails[max(at - 1, 0) : at + 1]:
            common = common_length(np.frombuffer(tail.tokens, np.int32), tokens)
            if common > found[1]:
                found = tail.page, common
        return found

    def add(self, before: Before, tokens: NDArray[np.int32], page: int) -> None:
        """A page begins with these tokens; it is in no other's place yet."""
        tail = _Tail(tokens.tobytes(), page)
        insort(self._behind.setdefault(before, []), tail)
        self._before[page] = before, tail

    def size(self, page: int) -> int | None:
        """Tokens of a tail; None for what is none."""
        found = self._before.get(page)
        return None if found is None else len(found[1].tokens) // np.dtype(np.int32).itemsize

    def forget(self, page: int) -> None:
        """A page was given to somebody else: neither it nor what stands behind it is found."""
        if page in self._before:
            before, tail = self._before.pop(page)
            tails = self._behind[before]
            del tails[bisect_left(tails, tail)]
            if not tails:
                del self._behind[before]
        for tail in self._behind.pop(page, ()):
            del self._before[tail.page]

    def clear(self) -> None:
        """Nothing is cached any more."""
        self._behind.clear()
        self._before.clear()


def common_length(some: NDArray[np.int32], others: NDArray[np.int32]) -> int:
    """Leading tokens that two have in common."""
    length = min(len(some), len(others))
    if not length:
        return 0
    differs = some[:length] != others[:length]
    first = int(differs.argmax())
    return first if differs[first] else length
