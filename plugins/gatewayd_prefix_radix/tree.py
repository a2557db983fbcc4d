"""Node of the radix tree.

An edge is a run of whole pages, so that a page belongs to one edge; where two sequences diverge
within a page, each has a page of its own there, and both edges begin with the same tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

HOLE = -1
"""Placeholder of a page that was evicted while others after it were not."""


@dataclass(slots=True, eq=False, repr=False)
class RadixNode:
    """Run of pages, with child runs that continue it.

    Children are sorted by the tokens of their first page, so those that have most in common with a
    page are adjacent to its position.

    Attributes:
        number: in the tree's table of nodes.
        parent: None for the root of a salt.
        start: number of pages before the run.
        tokens: ids of the run, shape ``[len(pages) * page_size]``; replaced, never written to.
        pages: page ids or ``HOLE``, shape ``[len(pages)]``.
        keys: first pages of the children, see ``key_of``.
        children: in the order of ``keys``.
    """

    number: int
    parent: RadixNode | None
    start: int
    tokens: NDArray[np.int32]
    pages: NDArray[np.int32]
    keys: list[bytes] = field(default_factory=list)
    children: list[RadixNode] = field(default_factory=list)

    def find(self, page: NDArray[np.int32]) -> RadixNode | None:
        """Return the child that begins with a page's tokens."""
        key = key_of(page)
        at = bisect_left(self.keys, key)
        if at < len(self.keys) and self.keys[at] == key:
            return self.children[at]
        return None

    def add(self, child: RadixNode, page_size: int) -> None:
        """Add a child run."""
        key = key_of(child.tokens[:page_size])
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.children.insert(at, child)

    def remove(self, child: RadixNode, page_size: int) -> None:
        """Remove a child run."""
        at = bisect_left(self.keys, key_of(child.tokens[:page_size]))
        del self.keys[at]
        del self.children[at]

    def closest(self, tokens: NDArray[np.int32]) -> tuple[int, int]:
        """Find the child whose first page has the longest common prefix with some tokens.

        Returns:
            That page and the number of common tokens; ``HOLE`` and 0 if there is none.
        """
        key = key_of(tokens)
        at = bisect_left(self.keys, key)
        best = HOLE, 0
        # From where the tokens would be inserted, up and down.
        for order in (range(at, len(self.keys)), range(at - 1, -1, -1)):
            for index in order:
                common = _common_tokens(key, self.keys[index])
                # It only decreases from here on.
                if common <= best[1]:
                    break
                page = int(self.children[index].pages[0])
                if page != HOLE:
                    best = page, common
                    break
        return best


def key_of(tokens: NDArray[np.int32]) -> bytes:
    """Return tokens as bytes with the same order."""
    return tokens.astype(">i4").tobytes()


def _common_tokens(key: bytes, other: bytes) -> int:
    """Return the number of leading tokens that two keys have in common."""
    if not key or not other:
        return 0
    return common_length(np.frombuffer(key, ">i4"), np.frombuffer(other, ">i4"))


def common_length(some: NDArray[np.int32], others: NDArray[np.int32]) -> int:
    """Return the number of leading tokens that two nonempty runs have in common."""
    length = min(len(some), len(others))
    differs = some[:length] != others[:length]
    first = int(differs.argmax())
    return first if differs[first] else length
