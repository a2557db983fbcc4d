"""Allocation of pages for running sequences, preempting others where pages are short."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.kv.page_allocator import OutOfPages, OverCeiling, Pages
from gatewayd_engine.scheduling.admission import Admission
from gatewayd_engine.scheduling.block_tables import BlockTables
from gatewayd_engine.scheduling.preemption import Preemption
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.sequence import Sequence


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PageGrowth:
    """Allocator of the pages that running sequences grow into.

    Args:
        queue: the engine's sequence table.
        pages: the page allocator.
        block_tables: page lists of the sequences.
        admission: pages reserved for running sequences.
        preemption: chooses victims.
        page_size: tokens per page.
    """

    _queue: Queue
    _pages: Pages
    _block_tables: BlockTables
    _admission: Admission
    _preemption: Preemption
    _page_size: int

    @property
    def may_preempt(self) -> bool:
        """Whether the next step may have to preempt a running sequence for lack of pages."""
        view, quotas = self._queue.view, self._pages.quotas
        running = view.running
        # The budget of a step fills as many pages, and begins one for each sequence.
        bound = view.token_budget // self._page_size + len(running) + len(self._block_tables.forked)
        # Free pages often suffice, and the eviction strategy need not count the cached ones.
        if quotas is None and (bound <= self._pages.num_free or bound <= self._pages.num_available):
            return False
        computed = view.num_computed[running]
        # An upper bound for any plan: each sequence is assumed to get the whole budget.
        wants = np.minimum(view.num_tokens[running] - computed, view.token_budget)
        needed = -(-(computed + wants) // self._page_size) - self._queue.num_pages[running]
        # A forked sequence may have to copy the page that it writes to.
        most = int(np.maximum(needed, 0).sum()) + len(self._block_tables.forked)
        if quotas is None:
            return most > self._pages.num_available
        return most > self._pages.num_available - quotas.num_reserved or any(
            int(needed[view.tenant[running] == tenant].clip(0).sum())
            + len(self._block_tables.forked)
            > room
            for tenant in quotas.bounds
            if (room := quotas.headroom(tenant)) is not None
        )

    def grow(self, slots: NDArray[np.int32], tokens: NDArray[np.int32]) -> set[int]:
        """Allocate the pages that the tokens granted to running sequences are written to.

        Returns:
            Slots of the sequences that were preempted for others.
        """
        queue, size = self._queue, self._page_size
        computed = queue.view.num_computed[slots]
        needed = -(-(computed + tokens) // size)
        grows = needed > queue.num_pages[slots]
        if self._block_tables.forked:
            grows |= np.isin(slots, np.fromiter(self._block_tables.forked, np.int32))
        preempted: set[int] = set()
        for i in grows.nonzero()[0].tolist():
            slot = int(slots[i])
            if slot in preempted:
                continue
            sequence = queue[slot]
            if slot in self._block_tables.forked:
                self._unshare(sequence, int(computed[i]), preempted)
            # It may be chosen as the victim of its own growth.
            while slot not in preempted and len(sequence.pages) < needed[i]:
                page = self.allocate(preempted, slot)
                if page is not None:
                    self._block_tables.append(sequence, page)
        return preempted

    def grow_for_drafts(self, slot: int, reach: int) -> int:
        """Allocate pages for speculative tokens of a running sequence.

        This never preempts: only pages that are not reserved for other sequences are used.

        Returns:
            Tokens that its pages hold now.
        """
        sequence, size = self._queue[slot], self._page_size
        tenant = int(self._queue.view.tenant[slot])
        spare = self._admission.headroom(tenant)
        while len(sequence.pages) * size < reach and spare > 0:
            self._block_tables.append(sequence, self._pages.allocate(tenant))
            spare -= 1
        return len(sequence.pages) * size

    def allocate(self, preempted: set[int], slot: int) -> int | None:
        """Allocate a page for a running sequence, preempting others for it if necessary.

        Args:
            preempted: set to which the slots of preempted sequences are added.
            slot: of the sequence.

        Returns:
            The page; None if the sequence itself was preempted.
        """
        tenant = int(self._queue.view.tenant[slot])
        while True:
            try:
                return self._pages.allocate(tenant)
            except OutOfPages as error:
                # At a tenant's ceiling only pages of the same tenant help.
                whose = tenant if isinstance(error, OverCeiling) else None
                # Waiting forks lose their inherited pages before a running sequence is preempted.
                if self._admission.release_inherited(whose):
                    continue
                victim = self._preemption.choose_victim(whose)
                self._preemption.preempt(victim)
                # Enlarges its reserve at the next admission; planned preemptions do not.
                self._queue[victim.slot].preemptions += 1
                preempted.add(victim.slot)
                if victim.slot == slot:
                    return None

    def _unshare(self, sequence: Sequence, position: int, preempted: set[int]) -> None:
        """Make the page of ``position`` exclusive to the sequence."""
        if self._block_tables.is_own(sequence, position):
            return
        page = self.allocate(preempted, sequence.slot)
        if page is not None:
            self._block_tables.copy(sequence, position, page)
