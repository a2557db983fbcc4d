"""Where known pages stand, and how often they were found: columns, for whoever looks at all."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gatewayd_hooks.caching import PageOrigin

NOTHING = -1
"""Instead of a page."""


class PageTree:
    """Columns over the pages of a pool; what they say of a page counts while it is known.

    Writing to them is part of a step, and costs less than a microsecond a page.

    Args:
        num_pages: of the pool.
    """

    __slots__ = ("_born", "_depths", "_hits", "_last", "_parent_born", "_parents")

    def __init__(self, num_pages: int) -> None:
        self._parents = array("i", [NOTHING]) * num_pages
        self._depths = array("i", [0]) * num_pages
        # When it became known: a page that was given to somebody else is no longer the parent of
        # those that went on from it.
        self._born = array("q", [0]) * num_pages
        self._parent_born = array("q", [0]) * num_pages
        self._last = 0
        self._hits = np.zeros(num_pages, np.int32)

    def add(self, page: int, origin: PageOrigin) -> None:
        """A page is known that was not before."""
        self._last += 1
        self._born[page] = self._last
        parent = self._parents[page] = origin.parent
        self._parent_born[page] = self._born[parent] if parent >= 0 else 0
        self._depths[page] = origin.depth
        self._hits[page] = 0

    def found(self, pages: Sequence[int]) -> None:
        """A request need not compute what stands in these; each page is there once."""
        self._hits[pages] += 1

    def hits(self) -> NDArray[np.int32]:
        """Requests that found each since it is known; a copy."""
        return self._hits.copy()

    def depths(self) -> NDArray[np.int32]:
        """Pages before each; a copy."""
        return np.array(self._depths, np.int32)

    def parents(self, known: NDArray[np.bool_]) -> NDArray[np.int32]:
        """The known page before each one, ``NOTHING`` where there is none; a copy."""
        parents = np.array(self._parents, np.int32)
        born, parent_born = np.array(self._born), np.array(self._parent_born)
        is_there = (parents >= 0) & known[parents] & (born[parents] == parent_born)
        return np.where(is_there, parents, np.int32(NOTHING))
