"""Least frequently used eviction with dynamic ageing, by which old use counts lose weight.

A page's rank is its use count, plus the rank of the page that was evicted last when it was
released: newly used pages start where old favourites stand. Source: LFU with dynamic aging, Arlitt
et al., "Evaluating content management techniques for Web proxy caches" (2000).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from gatewayd_hooks.helpers.handover import HandoverState

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources

_FORM = "lfu/1"


class Lfu:
    """Cached pages by rank, and within one rank in the order of their release."""

    def __init__(self) -> None:
        self._uses: list[int] = []
        self._ticket: list[int] = []  # of the latest release; 0 while a page is held
        self._order: list[tuple[int, int, int]] = []  # a heap of rank, ticket and page
        self._last_ticket = 0
        # Rank of the page evicted last, from which new ranks start.
        self._floor = 0
        self._count = 0

    def open(self, resources: EngineResources) -> None:
        """Allocate per-page state."""
        self._uses = [0] * resources.num_pages
        self._ticket = [0] * resources.num_pages

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def export_state(self) -> HandoverState:
        """Return use counts, tickets and ranks."""
        return HandoverState(
            _FORM,
            (self._uses, self._ticket, self._order, self._last_ticket, self._floor, self._count),
        )

    def import_state(self, state: HandoverState) -> bool:
        """Take over those of another with the same number of pages."""
        if state.form != _FORM or len(state.content[0]) != len(self._uses):
            return False
        uses, ticket, order, self._last_ticket, self._floor, self._count = state.content
        self._uses, self._ticket, self._order = list(uses), list(ticket), list(order)
        return True

    def release(self, page: int) -> None:
        """Count a use and append the page to its rank."""
        self._uses[page] += 1
        self._last_ticket += 1
        self._ticket[page] = self._last_ticket
        heapq.heappush(self._order, (self._floor + self._uses[page], self._last_ticket, page))
        self._count += 1
        # Bounds the heap, however many of its entries are stale.
        if len(self._order) > 2 * len(self._ticket):
            self._compact_order()

    def reuse(self, page: int) -> None:
        """Remove the page from the order; its use count stays."""
        # The page's heap entry stays: without its ticket it is stale, and skipped when it is
        # popped.
        self._ticket[page] = 0
        self._count -= 1

    def victim(self) -> int:
        """Evict the first page of the lowest rank."""
        if not self._count:
            raise LookupError("no page may be evicted")
        while True:
            rank, ticket, page = heapq.heappop(self._order)
            if self._ticket[page] == ticket:
                break
        self._floor = rank
        self.drop(page)
        return page

    def drop(self, page: int) -> None:
        """Evict a page that the caller chose."""
        self._uses[page] = self._ticket[page] = 0
        self._count -= 1

    def __len__(self) -> int:
        return self._count

    def _compact_order(self) -> None:
        """Discard releases of pages that were reused since; amortized, one per release."""
        self._order = [entry for entry in self._order if self._ticket[entry[2]] == entry[1]]
        heapq.heapify(self._order)
