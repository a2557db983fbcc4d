"""Pages of a running sequence of whose prompt few keys and values are to stay."""

from __future__ import annotations

from gatewayd_engine.cache.offload import KvOffload
from gatewayd_engine.kv.compacted_prefix import NO_PAGE, only_pages
from gatewayd_engine.kv.key_biases import bias_pages, write_front
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.scheduling.block_tables import BlockTables
from gatewayd_engine.scheduling.page_growth import Growth
from gatewayd_engine.scheduling.preemption import Preemption
from gatewayd_engine.state.sequence import Sequence
from gatewayd_hooks.kv_compression import Compacted
from gatewayd_hooks.preemption import PreemptionMode


class Shortening:
    """Gives old pages back and takes fresh ones.

    Args:
        pool: holds keys and values.
        pages: who holds which.
        holdings: of the sequences.
        growth: finds fresh ones.
        preemption: puts out whom something went wrong with.
        outside: what is kept of those who gave way.

    Attributes:
        count: prompts that were shortened, since the start.
        saved_pages: of those, less what they took.
    """

    def __init__(
        self,
        pool: KvPool,
        pages: Pages,
        holdings: BlockTables,
        growth: Growth,
        preemption: Preemption,
        outside: KvOffload,
    ) -> None:
        self._pool = pool
        self._pages = pages
        self._holdings = holdings
        self._growth = growth
        self._preemption = preemption
        self._outside = outside
        self.count = 0
        self.saved_pages = 0

    def begin_anew(self, sequence: Sequence) -> None:
        """A sequence gave way before it was shortened: it computes its prompt again, to be then.

        If it was swapped out it would come back whole, and answer as if nobody had been asked.
        """
        self._outside.forget(sequence)

    def saves(self, covered: int, kept: int) -> bool:
        """Whether so many keys, with their biases, take fewer pages than what they stand for."""
        size = self._pool.page_size
        return kept // size + bias_pages(self._pool, kept) < covered // size

    def shorten(self, sequence: Sequence, covered: int, kept: int, found: list[Compacted]) -> bool:
        """Let few keys and values stand for the first tokens of a running sequence.

        Their pages are given back before fresh ones are taken: a sequence that fills the pool
        must still fit. What others hold of them, or the prefix cache knows, stays as it is.

        Args:
            sequence: whose prompt is computed; no step computes it.
            covered: tokens that are stood for.
            kept: keys and values that stand for them.
            found: what stands for them, by layer.

        Returns:
            Whether it could; else it had to give way, and computes its prompt anew.
        """
        size, slot = self._pool.page_size, sequence.slot
        first = covered // size
        held = sequence.pages[:first]
        num_fresh = kept // size + bias_pages(self._pool, kept)
        sequence.pages[:first] = [NO_PAGE] * first
        preempted: set[int] = set()
        try:
            self._pages.give_back(held[::-1])
            for i in range(num_fresh):
                page = self._growth.take(preempted, slot)
                if page is None:
                    return False
                sequence.pages[i] = page
        except BaseException:
            if sequence.row >= 0:
                self._preemption.put_out(sequence, PreemptionMode.RECOMPUTE)
            raise
        pages = only_pages(sequence.pages)
        write_front(self._pool, pages[:num_fresh], kept, found)
        self._holdings.set_front(sequence, covered, kept, pages)
        self.count += 1
        self.saved_pages += first - num_fresh
        return True
