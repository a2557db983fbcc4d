"""Tree of cached pages, with hit counts, as columns for inspection."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gatewayd_hooks.caching import PageOrigin

NO_PARENT = -1
"""Parent of a page without a cached predecessor."""


class PageTree:
    """Parents, depths and hits by page; an entry is valid while the page is cached.

    Updates are part of a step, and cost less than a microsecond per page.

    Args:
        num_pages: pages of the pool.
    """

    __slots__ = ("_born", "_depths", "_hits", "_last", "_parent_born", "_parents")

    def __init__(self, num_pages: int) -> None:
        self._parents = array("i", [NO_PARENT]) * num_pages
        self._depths = array("i", [0]) * num_pages
        # Sequence number of its caching: a page that was evicted and reused is no longer the
        # parent of the pages cached after it.
        self._born = array("q", [0]) * num_pages
        self._parent_born = array("q", [0]) * num_pages
        self._last = 0
        self._hits = np.zeros(num_pages, np.int32)

    def add(self, page: int, origin: PageOrigin) -> None:
        """Add a newly cached page."""
        self._last += 1
        self._born[page] = self._last
        parent = self._parents[page] = origin.parent
        self._parent_born[page] = self._born[parent] if parent >= 0 else 0
        self._depths[page] = origin.depth
        self._hits[page] = 0

    def record_hits(self, pages: Sequence[int]) -> None:
        """Count a hit on each of these pages, which must be distinct."""
        self._hits[pages] += 1

    def hits(self) -> NDArray[np.int32]:
        """Return the hits of each page since it was cached; a copy."""
        return self._hits.copy()

    def depths(self) -> NDArray[np.int32]:
        """Return the number of pages before each page; a copy."""
        return np.array(self._depths, np.int32)

    def parents(self, known: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Return the cached parent of each page, ``NO_PARENT`` where there is none; a copy."""
        parents = np.array(self._parents, np.int32)
        born, parent_born = np.array(self._born), np.array(self._parent_born)
        is_there = (parents >= 0) & known[parents] & (born[parents] == parent_born)
        return np.where(is_there, parents, np.int32(NO_PARENT))
