"""Pages of sequences in the KV tiers: written on eviction, found, waited for, got back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gatewayd_engine.cache.page_keys import PageKeys
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.kv.swapped_pages import Incoming
from gatewayd_engine.kv.tiers.chain import TierChain
from gatewayd_engine.kv.tiers.tier import Located
from gatewayd_engine.kv.transfer_cost import CostLine
from gatewayd_engine.state.sequence import Sequence
from gatewayd_hooks.caching import Match

_MOST_WAIT = 0.5
"""Seconds without another page after which a sequence computes instead of waiting."""
_TRIAL = 16
"""One in so many sequences waits for pages although computing seems quicker: it may not be so."""


@dataclass(slots=True)
class _Wait:
    """A sequence that waits for pages to be brought to memory.

    Attributes:
        ready: pages that have come.
        since: when the last one did, seconds.
        is_over: it waits no more.
    """

    ready: int
    since: float
    is_over: bool = False


class Tiered:
    """What the tiers hold of the pool's pages and of waiting sequences.

    Args:
        pool: where pages come from and go to.
        pages: tells when one is evicted.
        chain: the tiers.
        contents: names pages.
        computing: what tokens take.
        hits: counts prompt tokens that are found, by tier.
    """

    def __init__(
        self,
        pool: KvPool,
        pages: Pages,
        chain: TierChain,
        contents: PageKeys,
        computing: CostLine,
        hits: Counter[str],
    ) -> None:
        self._pool = pool
        self._pages = pages
        self._chain = chain
        self._contents = contents
        self._computing = computing
        self._key_of: dict[int, bytes] = {}
        self._located: dict[int, tuple[int, int, list[Located]]] = {}
        self._waits: dict[int, _Wait] = {}
        self._doubts = 0
        self._hits = hits
        pages.on_evict = self._write_back

    def forget(self, sequence: Sequence) -> None:
        """A sequence waits no more."""
        self._located.pop(sequence.id, None)
        self._waits.pop(sequence.id, None)

    # Out

    def note(self, sequence: Sequence, known: dict[int, int]) -> None:
        """The prefix cache maps to pages of a sequence from now on.

        Args:
            sequence: whose they are.
            known: the pages, and which of the sequence's pages each is.
        """
        keys = self._contents.keys(sequence, max(known.values()) + 1)
        for page, index in known.items():
            self._key_of[page] = keys[index]

    def dropped(self, page: int) -> None:
        """A cached page was given up, and is not wanted here."""
        self._key_of.pop(page, None)

    def _write_back(self, page: int) -> None:
        key = self._key_of.pop(page, None)
        if key is not None:
            self._pool.arrivals.leave(page, partial(self._chain.put, key))

    def save(self, seconds: float, fenced: Callable[[Callable[[], None]], object]) -> None:
        """Have the cached pages kept for a later process; afterwards nothing is cached.

        Args:
            seconds: that it may take.
            fenced: does something that calls strategies, and goes on with it after a fault.
        """
        if not self._chain.outlives:
            return
        evicted: list[int] = []
        taken: list[int] = []

        def take_all() -> None:
            while self._pages.num_available:
                taken.append(self._pages.take())

        self._pages.on_evict = evicted.append
        try:
            fenced(take_all)
        finally:
            self._pages.on_evict = self._write_back
            self._pages.give_back(taken)
        # What is evicted last is worth most, and begins what was evicted before.
        self._chain.keep(
            (
                (self._key_of[page], self._pool.arrivals.read(page))
                for page in reversed(evicted)
                if page in self._key_of
            ),
            seconds,
        )

    # In

    def reach(self, sequence: Sequence, match: Match, num_tokens: int) -> int:
        """Tokens that need not be computed, with what the tiers have behind a match."""
        size = self._pool.page_size
        pages = sum(len(one.keys) for one in self._usable(sequence, match, num_tokens))
        return max(match.num_tokens, (match.num_tokens // size + pages) * size if pages else 0)

    def has_more(self, sequence: Sequence, match: Match, num_tokens: int) -> bool:
        """Whether pages can be had now that reach beyond a match."""
        usable = self._usable(sequence, match, num_tokens)
        return bool(usable) and self._chain.ready(usable[0]) > 0

    def open(
        self, sequence: Sequence, match: Match, num_tokens: int
    ) -> tuple[Incoming, Callable[[], None]]:
        """Get what can be had now of the pages behind a match; tell when they are copied."""
        first = match.num_tokens // self._pool.page_size
        pages = []
        got: list[Located] = []
        for one in self._usable(sequence, match, num_tokens):
            found = self._chain.get(one)
            if found:
                pages += found
                got.append(Located(one.tier, one.keys[: len(found)]))
                if not sequence.was_counted:
                    self._hits[one.tier.choice.name] += len(found) * self._pool.page_size
            if len(found) < len(one.keys):
                break

        def release() -> None:
            for one in got:
                self._chain.release(one)

        return Incoming(first, pages, (first + len(pages)) * self._pool.page_size), release

    def fetch(self, sequence: Sequence, match: Match, num_tokens: int) -> bool:
        """Have pages of a waiting sequence brought to memory; whether it had better wait."""
        wait = self._waits.get(sequence.id)
        if wait is not None and wait.is_over:
            return False
        self._located.pop(sequence.id, None)
        slow = [one for one in self._locate(sequence, match, num_tokens) if one.tier.is_slow]
        if not slow:
            return False
        ready = sum(self._chain.ready(one) for one in slow)
        now = time.perf_counter()
        if wait is None:
            wait = self._waits[sequence.id] = _Wait(ready, now, is_over=not self._pays(slow))
        if ready > wait.ready:
            wait.ready, wait.since = ready, now
        elif now - wait.since > _MOST_WAIT:
            wait.is_over = True
        if ready >= sum(len(one.keys) for one in slow) or wait.is_over:
            return False
        for one in slow:
            self._chain.fetch(one)
        return True

    def _pays(self, slow: list[Located]) -> bool:
        """Whether reading pages is quicker than computing them."""
        computing = self._computing.line[1] * self._pool.page_size
        reading = max(self._chain.page_seconds(one) for one in slow)
        if not computing or reading <= computing:
            return True
        self._doubts += 1
        return self._doubts % _TRIAL == 0

    def _usable(self, sequence: Sequence, match: Match, num_tokens: int) -> list[Located]:
        """What is to come back: all that is found, or, once waiting is over, what is at hand."""
        located = self._locate(sequence, match, num_tokens)
        wait = self._waits.get(sequence.id)
        if wait is None or not wait.is_over:
            return located
        usable = []
        for one in located:
            ready = self._chain.ready(one)
            if ready:
                usable.append(Located(one.tier, one.keys[:ready]))
            if ready < len(one.keys):
                break
        return usable

    def _locate(self, sequence: Sequence, match: Match, num_tokens: int) -> list[Located]:
        """Where the full pages behind a match are; a token is left to compute."""
        if not sequence.shares:
            return []
        size = self._pool.page_size
        first, end = match.num_tokens // size, (sequence.whole(num_tokens) - 1) // size
        known = self._located.get(sequence.id)
        if known is not None and known[:2] == (first, self._chain.version):
            return known[2]
        keys = self._contents.keys(sequence, end)[first:]
        found = self._chain.locate(keys) if keys else []
        self._located[sequence.id] = first, self._chain.version, found
        return found
