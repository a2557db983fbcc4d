"""What is kept of pages outside the pool, and comes back instead of being computed again.

Sequences that were swapped out, each with its own pages, and the KV tiers, which all share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set

from gatewayd_engine.cache.page_keys import PageKeys
from gatewayd_engine.cache.tier_lookup import Tiered
from gatewayd_engine.kv.compacted_prefix import only_pages
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.kv.swapped_pages import Incoming
from gatewayd_engine.kv.transfer_cost import CostLine
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.caching import Match
from gatewayd_hooks.preemption import SwapCosts


class KvOffload:
    """Swapped sequences, and what the tiers have of waiting ones.

    Attributes:
        hits: prompt tokens that were found in tiers, by tier, since the start.
        swaps: sequences swapped out, total since the start.
        kept_pages: pages that they take in the host's memory now.
    """

    def __init__(self, pool: KvPool, pages: Pages, strategies: Strategies) -> None:
        self._pool = pool
        self._pages = pages
        self._contents = PageKeys(strategies.identify, pool.page_size)
        self._strategies = strategies
        self._computing = CostLine()
        self._copying = CostLine()
        pool.arrivals.on_copied = self._copying.add
        self._tiered: Tiered | None = None
        self.hits: Counter[str] = Counter()
        self.swaps = 0
        self.kept_pages = 0
        self.follow_tiers()

    def follow_tiers(self) -> None:
        """Ask the tiers that there are now; without any, nothing is kept for them."""
        chain = self._strategies.tiers
        if not chain:
            self._pages.on_evict, self._tiered = None, None
        elif self._tiered is None:
            self._tiered = Tiered(
                self._pool, self._pages, chain, self._contents, self._computing, self.hits
            )

    # Costs

    @property
    def learns(self) -> bool:
        """Whether anybody asks what things take."""
        return self._strategies.plan.learn is not None or self._tiered is not None

    def computed(self, num_tokens: int, seconds: float) -> None:
        """A step computed so many tokens."""
        self._computing.add(num_tokens, seconds)

    @property
    def costs(self) -> SwapCosts:
        """What was measured so far."""
        fixed, each = self._copying.line
        return SwapCosts(self._computing.line[1], 2 * fixed, 2 * each, self.kept_pages)

    # Swapping

    def keep(self, sequence: Sequence, num_computed: int) -> None:
        """Copy what is computed of a sequence, which is about to give up its pages."""
        held = sequence.pages[: -(-num_computed // self._pool.page_size)]
        pages = only_pages(held)
        if not pages or (len(pages) < len(held) and sequence.front is None):
            # Nothing, or its front was about to be written: it begins anew.
            self._pool.arrivals.wait()
            return
        copy = self._pool.arrivals.take_out(pages)
        self._drop(sequence)
        sequence.kept = Incoming(0, copy, num_computed, sequence.front)
        self.kept_pages += len(pages)
        self.swaps += 1

    def forget(self, sequence: Sequence) -> None:
        """A sequence waits no more, or begins anew."""
        self._drop(sequence)
        if self._tiered is not None:
            self._tiered.forget(sequence)

    def _drop(self, sequence: Sequence) -> None:
        if sequence.kept is not None:
            self.kept_pages -= len(sequence.kept.pages)
            sequence.kept = None

    # Tiers

    def note(self, sequence: Sequence, end: int, known: Set[int]) -> None:
        """The prefix cache maps to some of the first pages of a sequence from now on."""
        if self._tiered is not None and end:
            pages = sequence.pages[:end]
            self._tiered.note(sequence, {page: i for i, page in enumerate(pages) if page in known})

    def dropped(self, page: int) -> None:
        """An operator has given up a cached page; tiers do not get it."""
        if self._tiered is not None:
            self._tiered.dropped(page)

    def fetch(self, sequence: Sequence, match: Match, num_tokens: int) -> bool:
        """Have pages of a waiting sequence brought to memory; whether it had better wait."""
        if self._tiered is None or sequence.kept is not None:
            return False
        return self._tiered.fetch(sequence, match, num_tokens)

    # Coming back

    def reach(self, sequence: Sequence, match: Match, num_tokens: int) -> int:
        """Tokens of a waiting sequence that need not be computed."""
        if kept := _beyond(sequence, match):
            return kept.num_tokens
        if self._tiered is None:
            return match.num_tokens
        return self._tiered.reach(sequence, match, num_tokens)

    def has_more(self, sequence: Sequence, match: Match, num_tokens: int) -> bool:
        """Whether pages can come back that reach beyond a match."""
        if _beyond(sequence, match):
            return True
        return self._tiered is not None and self._tiered.has_more(sequence, match, num_tokens)

    def bring(
        self, sequence: Sequence, match: Match, num_tokens: int, take: Callable[[], None]
    ) -> int:
        """Let pages come back to a sequence that was admitted with the full pages of a match.

        Args:
            sequence: whose they are.
            match: what it has.
            num_tokens: that it has, one of which is left to compute.
            take: gives it another page.

        Returns:
            Tokens that are computed of it once the pages are there.
        """
        release: Callable[[], None] = _nothing
        if kept := _beyond(sequence, match):
            first = match.num_tokens // self._pool.page_size
            incoming = Incoming(first, kept.pages[first:], kept.num_tokens)
        elif self._tiered is not None:
            incoming, release = self._tiered.open(sequence, match, num_tokens)
        else:
            raise ValueError("nothing comes back")
        try:
            for _ in incoming.pages:
                take()
        except BaseException:
            release()
            raise
        self._pool.arrivals.add(sequence.pages[incoming.first :], incoming.pages, release)
        return incoming.num_tokens

    def start(self) -> None:
        """Set in motion what is to come in this step."""
        self._pool.arrivals.start()

    def save(self, seconds: float, fenced: Callable[[Callable[[], None]], object]) -> None:
        """Have what is cached kept for a later engine; see ``Tiered.save``."""
        self._pool.arrivals.flush()
        if self._tiered is not None:
            self._tiered.save(seconds, fenced)

    def settle(self) -> None:
        """Wait for what is on its way: pages that it comes to are about to change hands."""
        self._pool.arrivals.wait()


def _beyond(sequence: Sequence, match: Match) -> Incoming | None:
    """What was swapped out of a sequence, if it reaches beyond a match."""
    kept = sequence.kept
    return kept if kept is not None and kept.num_tokens > match.num_tokens else None


def _nothing() -> None:
    """There is nothing to release."""
