"""KV offload: pages kept outside the pool, restored instead of being recomputed.

These are the private pages of swapped-out sequences, and the KV tiers, which all sequences share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set

from gatewayd_engine.cache.page_keys import PageKeys
from gatewayd_engine.cache.tier_lookup import TierLookup
from gatewayd_engine.kv.compacted_prefix import only_pages
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.kv.swapped_pages import IncomingPages
from gatewayd_engine.kv.transfer_cost import CostLine
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.caching import Match
from gatewayd_hooks.preemption import SwapCosts


class KvOffload:
    """Swapped-out sequences, and access to the KV tiers for waiting ones.

    Attributes:
        hits: prompt tokens found in tiers, by tier, since the start.
        swaps: sequences swapped out, total since the start.
        swapped_pages: pages of swapped-out sequences in host memory now.
    """

    def __init__(self, pool: KvPool, pages: Pages, strategies: Strategies) -> None:
        self._pool = pool
        self._pages = pages
        self._contents = PageKeys(strategies.identify, pool.page_size)
        self._strategies = strategies
        self._computing = CostLine()
        self._copying = CostLine()
        pool.transfers.on_copied = self._copying.add
        self._tiered: TierLookup | None = None
        self.hits: Counter[str] = Counter()
        self.swaps = 0
        self.swapped_pages = 0
        self.update_tiers()

    def update_tiers(self) -> None:
        """Connect to the current KV tiers; without any, evicted pages are discarded."""
        chain = self._strategies.tiers
        if not chain:
            self._pages.on_evict, self._tiered = None, None
        # Otherwise it is connected to the same chain, whose tiers have been replaced.
        elif self._tiered is None:
            self._tiered = TierLookup(
                self._pool, self._pages, chain, self._contents, self._computing, self.hits
            )

    # Costs

    @property
    def measures_costs(self) -> bool:
        """Whether any component uses the measured costs."""
        return self._strategies.plan.learn is not None or self._tiered is not None

    def record_computed(self, num_tokens: int, seconds: float) -> None:
        """Record the duration of a step that computed so many tokens."""
        self._computing.add(num_tokens, seconds)

    @property
    def costs(self) -> SwapCosts:
        """The costs measured so far."""
        fixed, each = self._copying.line
        # A swap copies each page out and back.
        return SwapCosts(self._computing.line[1], 2 * fixed, 2 * each, self.swapped_pages)

    # Swapping

    def swap_out(self, sequence: Sequence, num_computed: int) -> None:
        """Copy the computed pages of a sequence that is about to release them."""
        held = sequence.pages[: -(-num_computed // self._pool.page_size)]
        pages = only_pages(held)
        if not pages or (len(pages) < len(held) and sequence.front is None):
            # Nothing to copy, or its compacted prefix was incomplete: it recomputes everything.
            self._pool.transfers.wait()
            return
        copy = self._pool.transfers.copy_out(pages)
        self._discard_swapped(sequence)
        sequence.swapped = IncomingPages(0, copy, num_computed, sequence.front)
        self.swapped_pages += len(pages)
        self.swaps += 1

    def discard(self, sequence: Sequence) -> None:
        """Discard swapped pages and lookup results of a sequence that ended or restarts."""
        self._discard_swapped(sequence)
        if self._tiered is not None:
            self._tiered.discard(sequence)

    def _discard_swapped(self, sequence: Sequence) -> None:
        if sequence.swapped is not None:
            self.swapped_pages -= len(sequence.swapped.pages)
            sequence.swapped = None

    # Tiers

    def record_cached(self, sequence: Sequence, end: int, known: Set[int]) -> None:
        """Record that some of the first pages of a sequence are now in the prefix cache."""
        if self._tiered is not None and end:
            pages = sequence.pages[:end]
            self._tiered.record_cached(
                sequence, {page: i for i, page in enumerate(pages) if page in known}
            )

    def discard_page(self, page: int) -> None:
        """Discard a cached page that an operator has evicted; it is not written to tiers."""
        if self._tiered is not None:
            self._tiered.discard_page(page)

    def fetch(self, sequence: Sequence, match: Match, num_tokens: int) -> bool:
        """Prefetch pages of a waiting sequence; return whether it should wait for them."""
        if self._tiered is None or sequence.swapped is not None:
            return False
        return self._tiered.fetch(sequence, match, num_tokens)

    # Coming back

    def num_cached_tokens(self, sequence: Sequence, match: Match, num_tokens: int) -> int:
        """Return the tokens of a waiting sequence that need not be computed."""
        if swapped := _beyond(sequence, match):
            return swapped.num_tokens
        if self._tiered is None:
            return match.num_tokens
        return self._tiered.num_cached_tokens(sequence, match, num_tokens)

    def has_more(self, sequence: Sequence, match: Match, num_tokens: int) -> bool:
        """Whether pages beyond a match can be restored now."""
        if _beyond(sequence, match):
            return True
        return self._tiered is not None and self._tiered.has_more(sequence, match, num_tokens)

    def restore(
        self, sequence: Sequence, match: Match, num_tokens: int, append_page: Callable[[], None]
    ) -> int:
        """Restore pages of a sequence that was admitted with the full pages of a match.

        Args:
            sequence: the admitted sequence.
            match: its cached prefix.
            num_tokens: its length; one token is left to compute.
            append_page: allocates another page for it.

        Returns:
            Its computed tokens once the pages have been copied.
        """
        release: Callable[[], None] = _nothing
        if swapped := _beyond(sequence, match):
            first = match.num_tokens // self._pool.page_size
            incoming = IncomingPages(first, swapped.pages[first:], swapped.num_tokens)
        elif self._tiered is not None:
            incoming, release = self._tiered.load(sequence, match, num_tokens)
        else:
            raise ValueError("there are no pages to restore")
        try:
            for _ in incoming.pages:
                append_page()
        except BaseException:
            # The tier must retain the pages until they are released.
            release()
            raise
        self._pool.transfers.add(sequence.pages[incoming.first :], incoming.pages, release)
        return incoming.num_tokens

    def start(self) -> None:
        """Start the transfers of this step."""
        self._pool.transfers.start()

    def save(self, seconds: float, fenced: Callable[[Callable[[], None]], object]) -> None:
        """Persist the cached pages for a later engine; see ``TierLookup.save``."""
        self._pool.transfers.flush()
        if self._tiered is not None:
            self._tiered.save(seconds, fenced)

    def wait(self) -> None:
        """Wait for pending transfers, because their target pages are about to be released."""
        self._pool.transfers.wait()


def _beyond(sequence: Sequence, match: Match) -> IncomingPages | None:
    """Return the swapped pages of a sequence, if they extend beyond a match."""
    swapped = sequence.swapped
    return swapped if swapped is not None and swapped.num_tokens > match.num_tokens else None


def _nothing() -> None:
    """Do nothing, because there is nothing to release."""
