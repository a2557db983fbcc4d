"""Pages that running sequences grow by, whoever has to give way for them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.kv.page_allocator import OutOfPages, OverCeiling, Pages
from gatewayd_engine.scheduling.admission import Admission
from gatewayd_engine.scheduling.block_tables import BlockTables
from gatewayd_engine.scheduling.preemption import Preemption
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.sequence import Sequence


class Growth:
    """Finds them.

    Args:
        queue: of the sequences.
        pages: who holds which.
        holdings: of the sequences.
        admission: knows what was promised.
        preemption: says who gives way.
        page_size: tokens per page.
    """

    def __init__(
        self,
        queue: Queue,
        pages: Pages,
        holdings: BlockTables,
        admission: Admission,
        preemption: Preemption,
        page_size: int,
    ) -> None:
        self._queue = queue
        self._pages = pages
        self._holdings = holdings
        self._admission = admission
        self._preemption = preemption
        self._page_size = page_size

    @property
    def is_tight(self) -> bool:
        """Whether the next step may put a running sequence out for another's pages."""
        view = self._queue.view
        running = view.running
        computed = view.num_computed[running]
        wants = np.minimum(view.num_tokens[running] - computed, view.token_budget)
        needed = -(-(computed + wants) // self._page_size) - self._queue.num_pages[running]
        most = int(np.maximum(needed, 0).sum()) + len(self._holdings.forked)
        quotas = self._pages.quotas
        if quotas is None:
            return most > self._pages.num_available
        return most > self._pages.num_available - quotas.num_kept or any(
            int(needed[view.tenant[running] == tenant].clip(0).sum()) + len(self._holdings.forked)
            > room
            for tenant in quotas.bounds
            if (room := quotas.room(tenant)) is not None
        )

    def grow(self, slots: NDArray[np.int32], tokens: NDArray[np.int32]) -> set[int]:
        """Give running sequences the pages that their grants write to.

        Returns:
            Slots of those who were preempted for others.
        """
        queue, size = self._queue, self._page_size
        computed = queue.view.num_computed[slots]
        needed = -(-(computed + tokens) // size)
        grows = needed > queue.num_pages[slots]
        if self._holdings.forked:
            grows |= np.isin(slots, np.fromiter(self._holdings.forked, np.int32))
        preempted: set[int] = set()
        for i in np.flatnonzero(grows).tolist():
            slot = int(slots[i])
            if slot in preempted:
                continue
            sequence = queue[slot]
            if slot in self._holdings.forked:
                self._unshare(sequence, int(computed[i]), preempted)
            while slot not in preempted and len(sequence.pages) < needed[i]:
                page = self.take(preempted, slot)
                if page is not None:
                    self._holdings.append(sequence, page)
        return preempted

    def stretch(self, slot: int, reach: int) -> int:
        """Give a running sequence pages for tokens that it may never have.

        They must not cost another one its place: only what was not promised to anyone is taken.

        Returns:
            Tokens that its pages hold now.
        """
        sequence, size = self._queue[slot], self._page_size
        tenant = int(self._queue.view.tenant[slot])
        spare = self._admission.room(tenant)
        while len(sequence.pages) * size < reach and spare > 0:
            self._holdings.append(sequence, self._pages.take(tenant))
            spare -= 1
        return len(sequence.pages) * size

    def take(self, preempted: set[int], slot: int) -> int | None:
        """A page for a running sequence, whoever has to give way; None if it is itself.

        Args:
            preempted: gets the slots of those who gave way.
            slot: of the sequence.
        """
        tenant = int(self._queue.view.tenant[slot])
        while True:
            try:
                return self._pages.take(tenant)
            except OutOfPages as error:
                # At a ceiling only pages of the same tenant help.
                whose = tenant if isinstance(error, OverCeiling) else None
                if self._admission.drop_inherited(whose):
                    continue
                victim = self._preemption.victim(whose)
                self._preemption.preempt(victim)
                self._queue[victim.slot].preemptions += 1
                preempted.add(victim.slot)
                if victim.slot == slot:
                    return None

    def _unshare(self, sequence: Sequence, position: int, preempted: set[int]) -> None:
        """Make the page of ``position`` the sequence's own."""
        if self._holdings.is_own(sequence, position):
            return
        page = self.take(preempted, sequence.slot)
        if page is not None:
            self._holdings.copy(sequence, position, page)
