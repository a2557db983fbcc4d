"""Block tables of running sequences: append, copy-on-write, and scrubbing of pages."""

from __future__ import annotations

from gatewayd_engine.kv.compacted_prefix import NO_PAGE, CompactedPrefix, only_pages
from gatewayd_engine.kv.key_biases import bias_pages
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import Sequence


class BlockTables:
    """Page lists of sequences, kept in sync with their block table rows and page counts.

    Attributes:
        forked: slots whose next page to write may be shared with a fork.
    """

    def __init__(self, queue: Queue, rows: RunningBatch, pool: KvPool, pages: Pages) -> None:
        self._queue = queue
        self._rows = rows
        self._pool = pool
        self._pages = pages
        self.forked: set[int] = set()

    def append(self, sequence: Sequence, page: int) -> None:
        """Append a page for the sequence's next tokens."""
        sequence.pages.append(page)
        n = self._queue.num_pages[sequence.slot] = len(sequence.pages)
        self._rows.set_pages(sequence.row, n - 1, [page])

    def assign(self, sequence: Sequence, pages: list[int]) -> None:
        """Set the initial pages of a sequence, whose contents are already computed."""
        sequence.pages = pages
        self._queue.num_pages[sequence.slot] = len(pages)
        self._rows.set_pages(sequence.row, 0, pages)

    def is_own(self, sequence: Sequence, position: int) -> bool:
        """Whether the page of a position, if it exists yet, may be written to.

        A page in the prefix cache may not, even if no other sequence holds it: a parent may have
        filled the last page of the prompt with its own output. Once a page is exclusively owned
        it stays so, and the slot is no longer checked.
        """
        index = position // self._pool.page_size
        if index < len(sequence.pages):
            page = sequence.pages[index]
            if self._pages.is_shared(page) or self._pages.is_known(page):
                return False
        self.forked.discard(sequence.slot)
        return True

    def copy(self, sequence: Sequence, position: int, page: int) -> None:
        """Replace the shared page of a position by a newly allocated one (copy-on-write)."""
        index = position // self._pool.page_size
        shared = sequence.pages[index]
        self._pool.copy_page(shared, page)
        sequence.pages[index] = page
        self._rows.set_pages(sequence.row, index, [page])
        self.forked.discard(sequence.slot)
        # Last, because it may call the eviction strategy, which may raise.
        self._pages.release([shared])

    def set_front(self, sequence: Sequence, covered: int, kept: int, pages: list[int]) -> None:
        """Give a sequence a compacted prefix.

        Args:
            sequence: a running sequence.
            covered: number of tokens that the compacted prefix replaces.
            kept: number of keys and values that replace them.
            pages: those of the compacted keys and values, then of their biases, then of the
                remaining tokens.
        """
        first = kept // self._pool.page_size
        end = first + bias_pages(self._pool, kept)
        sequence.front = CompactedPrefix(covered, kept, tuple(pages[first:end]))
        absent = [NO_PAGE] * sequence.front.num_absent(self._pool.page_size)
        # Indexed by tokens; `RunningBatch.set_front` derives the table of KV slots.
        sequence.pages = [*pages[:end], *absent, *pages[end:]]
        self._queue.num_pages[sequence.slot] = len(sequence.pages)
        self._queue.num_absent[sequence.slot] = len(absent)
        self._rows.set_front(sequence.row, sequence.front, sequence.pages)

    def clear_front(self, sequence: Sequence) -> None:
        """Zero the bias pages of a sequence that is about to release its pages, if it has any.

        The bytes of float32 biases may be NaN in another data type: the next owner of the page
        reads beyond its own tokens under a mask, and a masked NaN is still a NaN.
        """
        if sequence.front is not None:
            for page in sequence.front.bias:
                self._pool.zero_page(page)
            sequence.front = None

    def scrub(self, sequence: Sequence) -> None:
        """Zero the pages that only this sequence has written, because they may contain NaN.

        Pages are read beyond their owner's tokens under a mask, and a masked NaN is still a NaN.
        """
        for page in only_pages(sequence.pages):
            if not self._pages.is_shared(page) and not self._pages.is_known(page):
                self._pool.zero_page(page)
