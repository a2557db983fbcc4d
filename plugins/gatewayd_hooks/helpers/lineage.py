"""Which cached page goes on from which, the bookkeeping that evictions share."""

from __future__ import annotations

_NONE = -1


class Lineage:
    """Parents and children among pages that are known; pages are given to others, too.

    Args:
        num_pages: of the pool.
    """

    __slots__ = ("_born", "_children", "_last", "_parent", "_parent_born")

    def __init__(self, num_pages: int) -> None:
        # When it became known, 0 while it is not: a page that was given to somebody else is no
        # longer the parent of those that went on from it.
        self._born = [0] * num_pages
        self._last = 0
        self._parent = [_NONE] * num_pages
        self._parent_born = [0] * num_pages
        self._children = [0] * num_pages

    def add(self, page: int, parent: int) -> None:
        """A page is known and goes on from another, or from none: -1; nothing new if it was."""
        if self._born[page]:
            return
        self._last += 1
        self._born[page] = self._last
        self._children[page] = 0
        self._parent[page] = parent if parent >= 0 and self._born[parent] else _NONE
        if self._parent[page] >= 0:
            self._parent_born[page] = self._born[parent]
            self._children[parent] += 1

    def drop(self, page: int) -> int:
        """A page is known no more; gives its parent, or -1."""
        parent = self.parent(page)
        if parent >= 0:
            self._children[parent] -= 1
        self._born[page] = 0
        self._children[page] = 0
        return parent

    def is_known(self, page: int) -> bool:
        """Whether it was added and not dropped."""
        return self._born[page] > 0

    def parent(self, page: int) -> int:
        """The page before it, -1 if there is none or it is known no more."""
        parent = self._parent[page]
        if self._born[page] and parent >= 0 and self._born[parent] == self._parent_born[page]:
            return parent
        return _NONE

    def is_leaf(self, page: int) -> bool:
        """Whether no known page goes on from it."""
        return not self._children[page]
