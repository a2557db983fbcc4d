"""Replacement of a prompt's first KV pages by those of a compacted prefix."""

from __future__ import annotations

from dataclasses import dataclass

from gatewayd_engine.cache.offload import KvOffload
from gatewayd_engine.kv.compacted_prefix import NO_PAGE, only_pages
from gatewayd_engine.kv.key_biases import bias_pages, write_front
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.scheduling.block_tables import BlockTables
from gatewayd_engine.scheduling.page_growth import PageGrowth
from gatewayd_engine.scheduling.preemption import Preemption
from gatewayd_engine.state.sequence import Sequence
from gatewayd_hooks.kv_compression import Compacted
from gatewayd_hooks.preemption import PreemptionMode


@dataclass(slots=True, eq=False, repr=False)
class PromptShortening:
    """Replacement of the pages of a prompt's prefix by those of a compacted prefix.

    Args:
        pool: the KV pool.
        pages: the page allocator.
        block_tables: page lists of the sequences.
        growth: allocates new pages.
        preemption: requeues a sequence when an error occurs.
        offload: swapped pages of preempted sequences.

    Attributes:
        count: prompts that were compacted since the start.
        saved_pages: pages released by these, less the new ones.
    """

    _pool: KvPool
    _pages: Pages
    _block_tables: BlockTables
    _growth: PageGrowth
    _preemption: Preemption
    _offload: KvOffload
    count: int = 0
    saved_pages: int = 0

    def discard_swapped(self, sequence: Sequence) -> None:
        """Discard the swapped pages of a sequence that was preempted before its compaction.

        Restored from swap it would keep the full prefix, and its output would differ; instead it
        recomputes its prompt and is compacted then.
        """
        self._offload.discard(sequence)

    def saves(self, covered: int, kept: int) -> bool:
        """Whether the compacted keys and their biases take fewer pages than what they replace."""
        size = self._pool.page_size
        return kept // size + bias_pages(self._pool, kept) < covered // size

    def shorten(self, sequence: Sequence, covered: int, kept: int, found: list[Compacted]) -> bool:
        """Replace the first tokens of a running sequence by a compacted prefix.

        The replaced pages are released before new ones are allocated: a sequence that fills the
        pool must still fit. Pages shared with other sequences or cached are not modified.

        Args:
            sequence: its prompt is computed, and no step computes it.
            covered: tokens that are replaced.
            kept: keys and values that replace them.
            found: the compacted keys and values, by layer.

        Returns:
            Whether it succeeded; else the sequence was preempted and recomputes its prompt.
        """
        size, slot = self._pool.page_size, sequence.slot
        first = covered // size
        held = sequence.pages[:first]
        num_fresh = kept // size + bias_pages(self._pool, kept)
        # Before the release, so that after a fault no released page is in the list.
        sequence.pages[:first] = [NO_PAGE] * first
        preempted: set[int] = set()
        try:
            self._pages.release(held[::-1])
            for i in range(num_fresh):
                page = self._growth.allocate(preempted, slot)
                if page is None:
                    return False
                sequence.pages[i] = page
        except BaseException:
            # Without its prefix it has to recompute the prompt, unless it was preempted already.
            if sequence.row >= 0:
                self._preemption.requeue(sequence, PreemptionMode.RECOMPUTE)
            raise
        pages = only_pages(sequence.pages)
        write_front(self._pool, pages[:num_fresh], kept, found)
        self._block_tables.set_front(sequence, covered, kept, pages)
        self.count += 1
        self.saved_pages += first - num_fresh
        return True
