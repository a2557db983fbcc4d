"""The tree of cached prefixes, a level at a time, when an operator asks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.cache.prefix_cache import PrefixCache
from gatewayd_engine.core.telemetry.inspection import Inspection
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.page_tree import NOTHING
from gatewayd_engine.process.inspect_messages import Browse, Browsed
from gatewayd_engine.state.queue import Queue

MOST_LIMIT = 1000


class Browsing:
    """Reads where known pages stand.

    Args:
        queue: knows tenants.
        pages: of the pool.
        prefixes: know what stands in them.
        inspection: knows pins.
    """

    def __init__(
        self, queue: Queue, pages: Pages, prefixes: PrefixCache, inspection: Inspection
    ) -> None:
        self._queue = queue
        self._pages = pages
        self._prefixes = prefixes
        self._inspection = inspection

    def look(self, message: Browse) -> Browsed:
        """The pages that go on from one."""
        pages, standing = self._pages, self._pages.standing
        known = pages.known()
        parents = standing.parents(known)
        is_child = known & (parents == message.parent)
        below = _below(parents, known, is_child)
        found = np.flatnonzero(is_child)
        found = found[np.argsort(-below[found], kind="stable")]
        limit = max(1, min(message.limit, MOST_LIMIT))
        shown = found[:limit]
        is_pinned = np.isin(shown, self._inspection.pinned())
        owners = self._inspection.owners()[shown].tolist()
        listed = shown.tolist()
        return Browsed(
            number=message.number,
            pages=_told(shown),
            depths=_told(standing.depths()[shown]),
            counts=_told(np.array([self._prefixes.filled(page) for page in listed], np.int32)),
            holders=_told(pages.holders()[shown]),
            below=_told(below[shown]),
            pinned=_told(is_pinned),
            hits=_told(standing.hits()[shown]),
            tenants=["" if owner < 0 else self._queue.tenants.name(owner) for owner in owners],
            tokens=[self._prefixes.tokens_in(page) for page in listed],
            more=len(found) - len(shown),
        )


def _below(
    parents: NDArray[np.int32], known: NDArray[np.bool_], is_child: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """How many known pages go on from each of some siblings, at any distance."""
    each = np.arange(len(parents))
    # Each page points to the one before it, but siblings and beginnings to themselves; then to
    # where that one points, which doubles the distance, until all point to where they lead.
    ahead = np.where(is_child | (parents == NOTHING), each, parents)
    while True:
        further = ahead[ahead]
        if (further == ahead).all():
            break
        ahead = further
    counts = np.bincount(ahead[known], minlength=len(parents))
    return counts - 1


def _told(column: NDArray[np.generic]) -> bytes:
    return column.astype(np.int32).tobytes()
