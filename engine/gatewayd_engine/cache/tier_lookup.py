"""Lookup of sequences' pages in KV tiers: write-back on eviction, prefetch, and restore."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from gatewayd_engine.cache.page_keys import PageKeys
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.kv.swapped_pages import IncomingPages
from gatewayd_engine.kv.tiers.chain import TierChain
from gatewayd_engine.kv.tiers.tier import PageRun
from gatewayd_engine.kv.transfer_cost import CostLine
from gatewayd_engine.state.sequence import Sequence
from gatewayd_hooks.caching import Match

_MOST_WAIT = 0.5
"""Seconds without another page after which a sequence is computed instead of waiting."""
_TRIAL = 16
"""One in so many sequences waits although computing seems faster, to measure the tier again."""


@dataclass(slots=True)
class _Wait:
    """State of a sequence that waits for pages from a slow tier.

    Attributes:
        ready: pages that are in memory.
        since: time at which the last one arrived, seconds.
        is_over: whether it has stopped waiting.
    """

    ready: int
    since: float
    is_over: bool = False


@dataclass(slots=True, eq=False, repr=False)
class TierLookup:
    """Connection of the pool, the prefix cache and waiting sequences with the KV tiers.

    Args:
        pool: source and target of pages.
        pages: the page allocator; notifies of evicted pages.
        chain: the tiers.
        contents: keys of pages.
        computing: measured cost of computing tokens.
        hits: counter of prompt tokens found, by tier.
    """

    _pool: KvPool
    _pages: Pages
    _chain: TierChain
    _contents: PageKeys
    _computing: CostLine
    _hits: Counter[str]
    _key_of: dict[int, bytes] = field(default_factory=dict)
    # By sequence id: index of the first page, version of the chain, and the located pages.
    _located: dict[int, tuple[int, int, list[PageRun]]] = field(default_factory=dict)
    _waits: dict[int, _Wait] = field(default_factory=dict)
    _slow_count: int = 0

    def __post_init__(self) -> None:
        self._pages.on_evict = self._write_back

    def discard(self, sequence: Sequence) -> None:
        """Discard the lookup results of a sequence that no longer waits."""
        self._located.pop(sequence.id, None)
        self._waits.pop(sequence.id, None)

    # Out

    def record_cached(self, sequence: Sequence, known: dict[int, int]) -> None:
        """Record the tier keys of pages that are now in the prefix cache.

        Args:
            sequence: their sequence.
            known: index in the sequence, by page.
        """
        keys = self._contents.keys(sequence, max(known.values()) + 1)
        for page, index in known.items():
            self._key_of[page] = keys[index]

    def discard_page(self, page: int) -> None:
        """Discard the key of an evicted page that is not to be written back."""
        self._key_of.pop(page, None)

    def _write_back(self, page: int) -> None:
        key = self._key_of.pop(page, None)
        if key is not None:
            self._pool.transfers.send_out(page, partial(self._chain.put, key))

    def save(self, seconds: float, fenced: Callable[[Callable[[], None]], object]) -> None:
        """Persist the cached pages for a later process; afterwards nothing is cached.

        Args:
            seconds: time limit.
            fenced: runs a function that calls strategies, and repeats it after a fault.
        """
        if not self._chain.is_persistent:
            return
        evicted: list[int] = []
        allocated: list[int] = []

        def evict_all() -> None:
            while self._pages.num_available:
                allocated.append(self._pages.allocate())

        # Evicting everything tells the strategy's order; pages are read from the pool afterwards.
        self._pages.on_evict = evicted.append
        try:
            fenced(evict_all)
        finally:
            self._pages.on_evict = self._write_back
            self._pages.release(allocated)
        # Pages evicted last are the most valuable, and precede those evicted before.
        self._chain.persist(
            (
                (self._key_of[page], self._pool.transfers.read(page))
                for page in reversed(evicted)
                if page in self._key_of
            ),
            seconds,
        )

    # In

    def num_cached_tokens(self, sequence: Sequence, match: Match, num_tokens: int) -> int:
        """Return the tokens that need not be computed, including pages in tiers after a match."""
        size = self._pool.page_size
        pages = sum(len(one.keys) for one in self._usable(sequence, match, num_tokens))
        return max(match.num_tokens, (match.num_tokens // size + pages) * size if pages else 0)

    def has_more(self, sequence: Sequence, match: Match, num_tokens: int) -> bool:
        """Whether pages beyond a match are available without waiting."""
        usable = self._usable(sequence, match, num_tokens)
        return bool(usable) and self._chain.ready(usable[0]) > 0

    def load(
        self, sequence: Sequence, match: Match, num_tokens: int
    ) -> tuple[IncomingPages, Callable[[], None]]:
        """Get the available pages after a match, and a function to call once they are copied."""
        first = match.num_tokens // self._pool.page_size
        pages = []
        got: list[PageRun] = []
        for one in self._usable(sequence, match, num_tokens):
            found = self._chain.get(one)
            if found:
                pages += found
                got.append(PageRun(one.tier, one.keys[: len(found)]))
                if not sequence.was_counted:
                    self._hits[one.tier.choice.name] += len(found) * self._pool.page_size
            # Pages after a gap are useless.
            if len(found) < len(one.keys):
                break

        def release() -> None:
            for one in got:
                self._chain.release(one)

        return IncomingPages(first, pages, (first + len(pages)) * self._pool.page_size), release

    def fetch(self, sequence: Sequence, match: Match, num_tokens: int) -> bool:
        """Prefetch pages of a waiting sequence; return whether it should wait for them."""
        wait = self._waits.get(sequence.id)
        if wait is not None and wait.is_over:
            return False
        # Looked up again: a tier may lose pages without a new version.
        self._located.pop(sequence.id, None)
        slow = [one for one in self._locate(sequence, match, num_tokens) if one.tier.is_slow]
        if not slow:
            return False
        ready = sum(self._chain.ready(one) for one in slow)
        now = time.perf_counter()
        if wait is None:
            wait = self._waits[sequence.id] = _Wait(
                ready, now, is_over=not self._is_worthwhile(slow)
            )
        # Every page that arrives restarts the time limit.
        if ready > wait.ready:
            wait.ready, wait.since = ready, now
        elif now - wait.since > _MOST_WAIT:
            wait.is_over = True
        if ready >= sum(len(one.keys) for one in slow) or wait.is_over:
            return False
        for one in slow:
            self._chain.fetch(one)
        return True

    def _is_worthwhile(self, slow: list[PageRun]) -> bool:
        """Whether reading pages is expected to be faster than computing them."""
        computing = self._computing.line[1] * self._pool.page_size
        reading = max(self._chain.page_seconds(one) for one in slow)
        # Neither cost may be measured yet; waiting measures the tier.
        if not computing or reading <= computing:
            return True
        self._slow_count += 1
        return self._slow_count % _TRIAL == 0

    def _usable(self, sequence: Sequence, match: Match, num_tokens: int) -> list[PageRun]:
        """Return the pages to restore: all that are found or, after waiting, those in memory."""
        located = self._locate(sequence, match, num_tokens)
        wait = self._waits.get(sequence.id)
        if wait is None or not wait.is_over:
            return located
        usable = []
        for one in located:
            ready = self._chain.ready(one)
            if ready:
                usable.append(PageRun(one.tier, one.keys[:ready]))
            if ready < len(one.keys):
                break
        return usable

    def _locate(self, sequence: Sequence, match: Match, num_tokens: int) -> list[PageRun]:
        """Locate the full pages after a match in the tiers; one token is left to compute."""
        if not sequence.may_share:
            return []
        size = self._pool.page_size
        first, end = match.num_tokens // size, (sequence.exact_len(num_tokens) - 1) // size
        known = self._located.get(sequence.id)
        if known is not None and known[:2] == (first, self._chain.version):
            return known[2]
        keys = self._contents.keys(sequence, end)[first:]
        found = self._chain.locate(keys) if keys else []
        self._located[sequence.id] = first, self._chain.version, found
        return found
