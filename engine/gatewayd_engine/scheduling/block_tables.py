"""Pages of running sequences: appended, copied before they are written, blanked."""

from __future__ import annotations

import torch

from gatewayd_engine.kv.compacted_prefix import NO_PAGE, CompactedPrefix, only_pages
from gatewayd_engine.kv.key_biases import bias_pages
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import Sequence


class BlockTables:
    """Keeps a sequence's list of pages, its block table and its column alike.

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
        """The sequence has taken a page for its next tokens."""
        sequence.pages.append(page)
        n = self._queue.num_pages[sequence.slot] = len(sequence.pages)
        self._rows.set_pages(sequence.row, n - 1, [page])

    def begin(self, sequence: Sequence, pages: list[int]) -> None:
        """The sequence starts with pages that others have computed."""
        sequence.pages = pages
        self._queue.num_pages[sequence.slot] = len(pages)
        self._rows.set_pages(sequence.row, 0, pages)

    def is_own(self, sequence: Sequence, position: int) -> bool:
        """Whether the page of a position, if there is one yet, may be written to.

        One that the prefix cache maps to may not, even if nobody else holds it: a parent may
        have filled the last page of the prompt with its own answer. A page that is the
        sequence's own stays so, and is not asked for again.
        """
        index = position // self._pool.page_size
        if index < len(sequence.pages):
            page = sequence.pages[index]
            if self._pages.is_shared(page) or self._pages.is_known(page):
                return False
        self.forked.discard(sequence.slot)
        return True

    def copy(self, sequence: Sequence, position: int, page: int) -> None:
        """Copy on write: a page just taken replaces the shared one of a position."""
        index = position // self._pool.page_size
        shared = sequence.pages[index]
        self._pool.copy_page(shared, page)
        sequence.pages[index] = page
        self._rows.set_pages(sequence.row, index, [page])
        self.forked.discard(sequence.slot)
        self._pages.give_back([shared])

    def set_front(self, sequence: Sequence, covered: int, kept: int, pages: list[int]) -> None:
        """A sequence begins with a front from now on.

        Args:
            sequence: running.
            covered: tokens that it stands for.
            kept: keys and values that do.
            pages: of the few, then of their biases, then of the tokens that are not covered.
        """
        first = kept // self._pool.page_size
        end = first + bias_pages(self._pool, kept)
        sequence.front = CompactedPrefix(covered, kept, tuple(pages[first:end]))
        absent = [NO_PAGE] * sequence.front.num_absent(self._pool.page_size)
        sequence.pages = [*pages[:end], *absent, *pages[end:]]
        self._queue.num_pages[sequence.slot] = len(sequence.pages)
        self._queue.num_absent[sequence.slot] = len(absent)
        self._rows.set_front(sequence.row, sequence.front, sequence.pages)

    def drop_front(self, sequence: Sequence) -> None:
        """Blank the biases of a sequence that is about to give its pages back, if it has any.

        Their float32, read as records or as numbers of another type, may be no numbers: whoever
        gets the page next reads beyond its own tokens under a mask, and a masked NaN is still one.
        """
        if sequence.front is not None:
            for page in sequence.front.bias:
                self._pool.data[page].view(torch.uint8).zero_()
            sequence.front = None

    def scrub(self, sequence: Sequence) -> None:
        """Blank the pages only this sequence has written: it may have put NaN there.

        Pages are read beyond their owner's tokens under a mask, and a masked NaN is still one.
        """
        for page in only_pages(sequence.pages):
            if not self._pages.is_shared(page) and not self._pages.is_known(page):
                self._pool.data[page].view(torch.uint8).zero_()
