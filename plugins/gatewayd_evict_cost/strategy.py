"""GreedyDual eviction: a page's rank is its recomputation cost plus the rank last evicted.

A page's attention reads all tokens before it, so recomputation costs more the deeper a page is, and
is more likely the more often it was used. New ranks start at the rank of the page evicted last: a
page stays for a time in proportion to its cost. Only the ends of prefixes are candidates, because
pages after a gap are not found any more. Source: GreedyDual, Young, "The k-server dual and loose
competitiveness for paging" (1994), with the frequency that Cherkasova adds, "Improving WWW proxies
performance with Greedy-Dual-Size-Frequency caching policy" (1998).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from gatewayd_hooks.helpers.handover import HandoverState
from gatewayd_hooks.helpers.lineage import Lineage

if TYPE_CHECKING:
    from gatewayd_evict_cost.config import CostConfig
    from gatewayd_hooks.caching import PageOrigin
    from gatewayd_hooks.resources import EngineResources

_FORM = "cost/1"


class CostEviction:
    """Cached pages by rank, ends of prefixes first."""

    def __init__(self, config: CostConfig) -> None:
        self._even_tokens = config.even_tokens
        self._page_size = 0
        self._lineage = Lineage(0)
        self._cost: list[float] = []
        self._uses: list[int] = []
        self._rank: list[float] = []
        self._ticket: list[int] = []  # of the latest release; 0 while a page is held
        self._order: list[tuple[float, int, int]] = []  # a heap of rank, ticket and page
        self._last_ticket = 0
        # Rank of the page evicted last, from which new ranks start.
        self._floor = 0.0
        self._count = 0

    def open(self, resources: EngineResources) -> None:
        """Allocate per-page state."""
        self._page_size = resources.page_size
        self._lineage = Lineage(resources.num_pages)
        self._cost = [1.0] * resources.num_pages
        self._uses = [0] * resources.num_pages
        self._rank = [0.0] * resources.num_pages
        self._ticket = [0] * resources.num_pages

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def export_state(self) -> HandoverState:
        """Return everything that determines ranks, and the scale of the costs."""
        scale = (self._even_tokens, self._page_size, len(self._ticket))
        columns = (self._cost, self._uses, self._rank, self._ticket, self._order)
        numbers = (self._last_ticket, self._floor, self._count)
        return HandoverState(_FORM, (scale, self._lineage, columns, numbers))

    def import_state(self, state: HandoverState) -> bool:
        """Take over the ranks of another, if its costs have the same scale."""
        if state.form != _FORM:
            return False
        scale, lineage, columns, numbers = state.content
        if scale != (self._even_tokens, self._page_size, len(self._ticket)):
            return False
        self._lineage = lineage
        self._cost, self._uses, self._rank, self._ticket, self._order = map(list, columns)
        self._last_ticket, self._floor, self._count = numbers
        return True

    def cached(self, page: int, origin: PageOrigin) -> None:
        """Set the page's cost: 1 at the beginning of a prompt."""
        self._lineage.add(page, origin.parent)
        self._cost[page] = 1.0 + origin.depth * self._page_size / self._even_tokens

    def release(self, page: int) -> None:
        """Count a use and insert the page above everything evicted so far."""
        self._uses[page] += 1
        self._last_ticket += 1
        self._ticket[page] = self._last_ticket
        self._rank[page] = self._floor + self._uses[page] * self._cost[page]
        self._count += 1
        self._offer(page)

    def reuse(self, page: int) -> None:
        """Remove the page from the order; its use count stays."""
        # The page's heap entry stays: without its ticket it is stale, and skipped when it is
        # popped.
        self._ticket[page] = 0
        self._count -= 1

    def victim(self) -> int:
        """Evict the end of a prefix with the lowest rank."""
        if not self._count:
            raise LookupError("no page may be evicted")
        page = self._end_of_a_prefix()
        if page < 0:
            # Each of them has a child in use.
            there = (page for page, ticket in enumerate(self._ticket) if ticket)
            page = min(there, key=lambda page: (self._rank[page], self._ticket[page]))
        # Monotonic, although an end of a prefix may be evicted after pages with higher ranks.
        self._floor = max(self._floor, self._rank[page])
        self.drop(page)
        return page

    def drop(self, page: int) -> None:
        """Evict a page that the caller chose."""
        self._ticket[page] = 0
        self._cost[page], self._uses[page] = 1.0, 0
        self._count -= 1
        parent = self._lineage.drop(page)
        # Without this child the parent may be the end of a prefix.
        if parent >= 0 and self._ticket[parent]:
            self._offer(parent)

    def __len__(self) -> int:
        return self._count

    def _offer(self, page: int) -> None:
        """Make a cached page a candidate if it has no children."""
        if not self._lineage.is_leaf(page):
            return
        heapq.heappush(self._order, (self._rank[page], self._ticket[page], page))
        # Bounds the heap, however many of its entries are stale.
        if len(self._order) > 2 * len(self._ticket):
            self._compact_order()

    def _end_of_a_prefix(self) -> int:
        """Pop the first valid candidate; return -1 if there is none."""
        while self._order:
            _, ticket, page = heapq.heappop(self._order)
            if self._ticket[page] == ticket and self._lineage.is_leaf(page):
                return page
        return -1

    def _compact_order(self) -> None:
        """Discard candidates that were reused since; amortized, one per release."""
        # A set, as a page may be offered repeatedly with one ticket, each time that its last child
        # is evicted.
        self._order = list({e for e in self._order if self._ticket[e[2]] == e[1]})
        heapq.heapify(self._order)
