"""Parent links between cached pages, shared by eviction strategies."""

from __future__ import annotations

_NONE = -1


class Lineage:
    """Parents and child counts of known pages; page ids are reused.

    Args:
        num_pages: of the pool.
    """

    __slots__ = ("_born", "_children", "_last", "_parent", "_parent_born")

    def __init__(self, num_pages: int) -> None:
        # Sequence number at which a page was added, 0 if it is not known: a page that was reused is
        # no longer the parent of its former children.
        self._born = [0] * num_pages
        self._last = 0
        self._parent = [_NONE] * num_pages
        self._parent_born = [0] * num_pages
        self._children = [0] * num_pages

    def add(self, page: int, parent: int) -> None:
        """Add a page with its parent, or -1 for none; no effect if the page is known."""
        if self._born[page]:
            return
        self._last += 1
        self._born[page] = self._last
        self._children[page] = 0
        # A parent that is not known counts as none.
        self._parent[page] = parent if parent >= 0 and self._born[parent] else _NONE
        if self._parent[page] >= 0:
            self._parent_born[page] = self._born[parent]
            self._children[parent] += 1

    def drop(self, page: int) -> int:
        """Remove a page; return its parent, or -1."""
        parent = self.parent(page)
        if parent >= 0:
            self._children[parent] -= 1
        self._born[page] = 0
        self._children[page] = 0
        return parent

    def is_known(self, page: int) -> bool:
        """Whether a page was added and not dropped."""
        return self._born[page] > 0

    def parent(self, page: int) -> int:
        """Return the page before it, -1 if there is none or it was dropped."""
        parent = self._parent[page]
        if self._born[page] and parent >= 0 and self._born[parent] == self._parent_born[page]:
            return parent
        return _NONE

    def is_leaf(self, page: int) -> bool:
        """Whether a page has no known children."""
        return not self._children[page]
