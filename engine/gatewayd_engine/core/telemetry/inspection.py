"""Operator snapshot of sequences, KV pool and machine, taken between two steps.

Columns are read at once by numpy: 20,000 pages and 256 sequences take about a millisecond.
Anything that needs a Python loop over pages is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.quotas import NO_TENANT
from gatewayd_engine.process.inspect_messages import PAGE_STATES, Inspected, PoolStats
from gatewayd_engine.process.machine_usage import UsageMeter
from gatewayd_engine.process.plugin_faults import attribute_faults
from gatewayd_engine.scheduling.placement import Placement
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.strategy import Kind

MOST_CELLS = 4096
"""Cells of the pool map: one per page, or one per as many pages as necessary."""
MOST_OWNERS = 1000
"""Tenants shown separately in the pool map: those with the most pages."""
_MOST_MATCHED = 16
_MOST_MATCHED_TOKENS = 16_384
"""Limits of waiting sequences, and of their tokens, whose cached prefix is looked up: a lookup
costs a microsecond per page found."""

_FREE, _CACHED, _ACTIVE, _SHARED, _PINNED = range(len(PAGE_STATES))
_LETTERS = np.frombuffer(PAGE_STATES.encode(), np.uint8)
_UNKNOWN = -1


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Inspection:
    """Snapshots of the state of the engine's components.

    Args:
        queue: the engine's sequence table.
        pages: page allocator of the pool.
        placement: prefix cache and KV offload.
        strategies: the eviction strategy, which knows pinned pages.
        meter: resource usage of the engine process.
    """

    _queue: Queue
    _pages: Pages
    _placement: Placement
    _strategies: Strategies
    _meter: UsageMeter

    def look(self, number: int) -> Inspected:
        """Return the state of all sequences, of the pool, and of the machine.

        Args:
            number: number of the request, echoed in the answer.
        """
        queue, view = self._queue, self._queue.view
        slots = np.flatnonzero(queue.ids >= 0)
        return Inspected(
            number=number,
            sequences=queue.ids[slots].tobytes(),
            # Without the tokens of a step in flight, which the queue shows as computed.
            computed=_int32(view.num_computed[slots] - queue.in_flight[slots]),
            pages=_int32(queue.num_pages[slots] - queue.num_absent[slots]),
            cached=_int32(self._cached(slots)),
            drafted=_int32(queue.drafted[slots]),
            accepted=_int32(queue.accepted[slots]),
            pool=self._pool(),
            tiers=self._strategies.tiers.num_pages(),
            machine=self._meter.look(),
        )

    def _cached(self, slots: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the cached prefix lengths of the first waiting sequences, -1 for the others."""
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
        """Return the pages pinned in the eviction strategy; none where it does not support pins."""
        ask = self._strategies.plan.pinned
        if ask is None:
            return np.zeros(0, np.int64)
        with attribute_faults(Kind.EVICTION):
            pages = np.array(list(ask()), np.int64).reshape(-1)
            if len(pages) and not 0 <= pages.min() <= pages.max() < self._pages.num_pages:
                raise ValueError("reported pins of pages that do not exist")
        return pages

    def states(self) -> NDArray[np.uint8]:
        """Return the state of each page, as index into ``PAGE_STATES``, shape ``[num_pages]``."""
        holders, known = self._pages.holders(), self._pages.known()
        states = known.astype(np.uint8)  # free or cached
        states[holders == 1] = _ACTIVE
        states[holders > 1] = _SHARED
        pinned = self.pinned()
        # Pinned pages in use stay active or shared: cached and pinned ones add up to the metrics'
        # number of cached pages (ADR 0022).
        states[pinned[states[pinned] == _CACHED]] = _PINNED
        return states

    def owners(self) -> NDArray[np.int32]:
        """Return the tenant number of each page; ``NO_TENANT`` for free pages."""
        # The allocator remembers the last owner of a free page.
        is_free = ~self._pages.known() & (self._pages.holders() == 0)
        return np.where(is_free, np.int32(NO_TENANT), self._pages.owners())

    def _pool(self) -> PoolStats:
        states, owners = self.states(), self.owners()
        tenants = self._queue.tenants
        # Shifted, because NO_TENANT is -1 and bincount takes no negative numbers.
        counts = np.bincount(owners + 1, minlength=len(tenants) + 1)[1:]
        order = np.argsort(-counts, kind="stable")[:MOST_OWNERS]
        order = order[counts[order] > 0]
        ranks = np.full(len(tenants) + 1, NO_TENANT, np.int32)  # the last entry is for free pages
        ranks[order] = np.arange(len(order), dtype=np.int32)
        each, cells, whose = _cells(states, owners)
        return PoolStats(
            pages_per_cell=each,
            cells=_LETTERS[cells].tobytes(),
            owners=ranks[whose].tobytes(),
            counts=np.bincount(states, minlength=len(PAGE_STATES)).tolist(),
            tenants=[tenants.name(i) for i in order.tolist()],
            tenant_pages=counts[order].tolist(),
        )


def _cells(
    states: NDArray[np.uint8], owners: NDArray[np.int32]
) -> tuple[int, NDArray[np.uint8], NDArray[np.int32]]:
    """Downsample to ``MOST_CELLS`` cells: the commonest state, and the owner of its first page.

    Returns:
        Pages per cell, and the two columns.
    """
    each = -(-len(states) // MOST_CELLS)
    if each <= 1:
        return 1, states, owners
    num_cells = -(-len(states) // each)
    padding = num_cells * each - len(states)
    # 255 is no state, so padding is never the commonest one.
    blocks = np.pad(states, (0, padding), constant_values=255).reshape(num_cells, each)
    counts = np.stack([(blocks == state).sum(1) for state in range(len(PAGE_STATES))])
    commonest = counts.argmax(0).astype(np.uint8)
    first = (blocks == commonest[:, None]).argmax(1)
    whose = np.pad(owners, (0, padding), constant_values=NO_TENANT).reshape(num_cells, each)
    return each, commonest, whose[np.arange(num_cells), first]


def _int32(column: NDArray[np.integer]) -> bytes:
    return column.astype(np.int32).tobytes()
