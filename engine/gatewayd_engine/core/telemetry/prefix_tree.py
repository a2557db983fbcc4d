"""Operator view of the prefix tree: the children of one cached page at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.cache.prefix_cache import PrefixCache
from gatewayd_engine.core.telemetry.inspection import Inspection
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.page_tree import NO_PARENT
from gatewayd_engine.process.inspect_messages import Browse, Browsed
from gatewayd_engine.state.queue import Queue

MOST_LIMIT = 1000


class PrefixTreeBrowser:
    """Listing of cached pages by their parent page.

    Args:
        queue: the tenants' names.
        pages: the page allocator with its tree of cached pages.
        prefixes: the tokens cached in each page.
        inspection: pinned pages and owners.
    """

    def __init__(
        self, queue: Queue, pages: Pages, prefixes: PrefixCache, inspection: Inspection
    ) -> None:
        self._queue = queue
        self._pages = pages
        self._prefixes = prefixes
        self._inspection = inspection

    def look(self, message: Browse) -> Browsed:
        """Return the cached pages that continue the given page."""
        pages, tree = self._pages, self._pages.tree
        known = pages.known()
        parents = tree.parents(known)
        is_child = known & (parents == message.parent)
        below = _below(parents, known, is_child)
        found = np.flatnonzero(is_child)
        # The largest subtrees first, because the list may be truncated.
        found = found[np.argsort(-below[found], kind="stable")]
        limit = max(1, min(message.limit, MOST_LIMIT))
        shown = found[:limit]
        is_pinned = np.isin(shown, self._inspection.pinned())
        owners = self._inspection.owners()[shown].tolist()
        listed = shown.tolist()
        return Browsed(
            number=message.number,
            pages=_int32(shown),
            depths=_int32(tree.depths()[shown]),
            counts=_int32(np.array([self._prefixes.filled(page) for page in listed], np.int32)),
            holders=_int32(pages.holders()[shown]),
            below=_int32(below[shown]),
            pinned=_int32(is_pinned),
            hits=_int32(tree.hits()[shown]),
            tenants=["" if owner < 0 else self._queue.tenants.name(owner) for owner in owners],
            tokens=[self._prefixes.tokens_in(page) for page in listed],
            more=len(found) - len(shown),
        )


def _below(
    parents: NDArray[np.int32], known: NDArray[np.bool_], is_child: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the number of cached descendants of each of some sibling pages."""
    each = np.arange(len(parents))
    # Pointer jumping: each page points to its parent, siblings and roots to themselves; following
    # the pointer of the parent doubles the distance, until all point to their top-most ancestor.
    ahead = np.where(is_child | (parents == NO_PARENT), each, parents)
    while True:
        further = ahead[ahead]
        if (further == ahead).all():
            break
        ahead = further
    counts = np.bincount(ahead[known], minlength=len(parents))
    return counts - 1


def _int32(column: NDArray[np.generic]) -> bytes:
    return column.astype(np.int32).tobytes()
