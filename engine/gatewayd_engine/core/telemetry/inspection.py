"""Looks at everything between two steps, when an operator asks; a step knows nothing of it.

Columns are read at once by numpy: 20,000 pages and 256 sequences take about a millisecond. What
would need a loop over pages in Python is not told.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.quotas import NOBODY
from gatewayd_engine.process.inspect_messages import PAGE_STATES, Inspected, PoolLook
from gatewayd_engine.process.machine_usage import Meter
from gatewayd_engine.process.plugin_faults import blame
from gatewayd_engine.scheduling.placement import Placement
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.strategy import Kind

MOST_CELLS = 4096
"""Of the map of a pool: a page each, or as many as it takes."""
MOST_OWNERS = 1000
"""Tenants that are told apart in it: those with most pages."""
_MOST_MATCHED = 16
_MOST_MATCHED_TOKENS = 16_384
"""Waiting sequences, and their tokens, of which is asked what is cached of them: a search costs a
microsecond for each page that it finds."""

_FREE, _CACHED, _ACTIVE, _SHARED, _PINNED = range(len(PAGE_STATES))
_LETTERS = np.frombuffer(PAGE_STATES.encode(), np.uint8)
_UNKNOWN = -1


class Inspection:
    """Reads what the engine's parts know.

    Args:
        queue: has the sequences.
        pages: of the pool.
        placement: knows prefixes and what is outside the pool.
        strategies: the eviction knows pins.
        meter: knows what the engine takes of its machine.
    """

    def __init__(
        self,
        queue: Queue,
        pages: Pages,
        placement: Placement,
        strategies: Strategies,
        meter: Meter,
    ) -> None:
        self._queue = queue
        self._pages = pages
        self._placement = placement
        self._strategies = strategies
        self._meter = meter

    def look(self, number: int) -> Inspected:
        """All sequences, the pool, and the machine.

        Args:
            number: of the question.
        """
        queue, view = self._queue, self._queue.view
        slots = np.flatnonzero(queue.ids >= 0)
        return Inspected(
            number=number,
            sequences=queue.ids[slots].tobytes(),
            computed=_told(view.num_computed[slots] - queue.in_flight[slots]),
            pages=_told(queue.num_pages[slots] - queue.num_absent[slots]),
            cached=_told(self._cached(slots)),
            drafted=_told(queue.drafted[slots]),
            accepted=_told(queue.accepted[slots]),
            pool=self._pool(),
            tiers=self._strategies.tiers.num_pages(),
            machine=self._meter.look(),
        )

    def _cached(self, slots: NDArray[np.int64]) -> NDArray[np.int32]:
        """Tokens of the first waiting sequences that need not be computed, -1 where none asked."""
        queue, view = self._queue, self._queue.view
        found = np.full(len(queue.ids), _UNKNOWN, np.int32)
        left = _MOST_MATCHED_TOKENS
        for slot in islice(queue.waiting, _MOST_MATCHED):
            num_tokens = int(view.num_tokens[slot])
            if num_tokens <= left:
                left -= num_tokens
                found[slot] = num_tokens - self._placement.prefixes.uncached(slot)
        return found[slots]

    def pinned(self) -> NDArray[np.int64]:
        """Pages that the eviction says are pinned; none where it cannot say."""
        ask = self._strategies.plan.pinned
        if ask is None:
            return np.zeros(0, np.int64)
        with blame(Kind.EVICTION):
            pages = np.array(list(ask()), np.int64).reshape(-1)
            if len(pages) and not 0 <= pages.min() <= pages.max() < self._pages.num_pages:
                raise ValueError("told pins of pages that there are not")
        return pages

    def states(self) -> NDArray[np.uint8]:
        """What each page is, as a place in ``PAGE_STATES``, shape ``[num_pages]``."""
        holders, known = self._pages.holders(), self._pages.known()
        states = known.astype(np.uint8)  # free or cached
        states[holders == 1] = _ACTIVE
        states[holders > 1] = _SHARED
        pinned = self.pinned()
        states[pinned[states[pinned] == _CACHED]] = _PINNED
        return states

    def owners(self) -> NDArray[np.int32]:
        """Whose each page is, by the numbers of the queue; ``NOBODY`` of those that are free."""
        is_free = ~self._pages.known() & (self._pages.holders() == 0)
        return np.where(is_free, np.int32(NOBODY), self._pages.owners())

    def _pool(self) -> PoolLook:
        states, owners = self.states(), self.owners()
        tenants = self._queue.tenants
        counts = np.bincount(owners + 1, minlength=len(tenants) + 1)[1:]
        order = np.argsort(-counts, kind="stable")[:MOST_OWNERS]
        order = order[counts[order] > 0]
        places = np.full(len(tenants) + 1, NOBODY, np.int32)  # the last one is nobody's
        places[order] = np.arange(len(order), dtype=np.int32)
        each, cells, whose = _cells(states, owners)
        return PoolLook(
            pages_per_cell=each,
            cells=_LETTERS[cells].tobytes(),
            owners=places[whose].tobytes(),
            counts=np.bincount(states, minlength=len(PAGE_STATES)).tolist(),
            tenants=[tenants.name(i) for i in order.tolist()],
            tenant_pages=counts[order].tolist(),
        )


def _cells(
    states: NDArray[np.uint8], owners: NDArray[np.int32]
) -> tuple[int, NDArray[np.uint8], NDArray[np.int32]]:
    """At most ``MOST_CELLS`` cells: the commonest state of each, and whose its first such page is.

    Returns:
        Pages of a cell, and the two columns.
    """
    each = -(-len(states) // MOST_CELLS)
    if each <= 1:
        return 1, states, owners
    num_cells = -(-len(states) // each)
    padding = num_cells * each - len(states)
    blocks = np.pad(states, (0, padding), constant_values=255).reshape(num_cells, each)
    counts = np.stack([(blocks == state).sum(1) for state in range(len(PAGE_STATES))])
    commonest = counts.argmax(0).astype(np.uint8)
    first = (blocks == commonest[:, None]).argmax(1)
    whose = np.pad(owners, (0, padding), constant_values=NOBODY).reshape(num_cells, each)
    return each, commonest, whose[np.arange(num_cells), first]


def _told(column: NDArray[np.integer]) -> bytes:
    return column.astype(np.int32).tobytes()
