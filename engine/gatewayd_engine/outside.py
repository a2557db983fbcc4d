"""What is kept of pages outside the pool, and comes back instead of being computed again."""

from __future__ import annotations

import time
from collections.abc import Callable

from gatewayd_engine.costs import Line
from gatewayd_engine.incoming import Incoming
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.sequence import Sequence
from gatewayd_engine.strategies import Strategies
from gatewayd_hooks.caching import Match
from gatewayd_hooks.preemption import SwapCosts


class Outside:
    """Sequences that were swapped out.

    Attributes:
        swaps: sequences swapped out, total since the start.
        kept_pages: pages that they take in the host's memory now.
    """

    def __init__(self, pool: KvPool, strategies: Strategies) -> None:
        self._pool = pool
        self._strategies = strategies
        self._computing = Line()
        self._copying = Line()
        pool.arrivals.on_copied = self._copying.add
        self.swaps = 0
        self.kept_pages = 0

    # Costs

    @property
    def learns(self) -> bool:
        """Whether anybody asks what things take."""
        return self._strategies.plan.learn is not None

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
        self._pool.arrivals.wait()
        num_pages = -(-num_computed // self._pool.page_size)
        if not num_pages:
            return
        began = time.perf_counter()
        copy = self._pool.raw[sequence.pages[:num_pages]]
        self._copying.add(num_pages, time.perf_counter() - began)
        self.forget(sequence)
        sequence.kept = Incoming(0, list(copy), num_computed)
        self.kept_pages += num_pages
        self.swaps += 1

    def forget(self, sequence: Sequence) -> None:
        """A sequence needs what was kept of it no more."""
        if sequence.kept is not None:
            self.kept_pages -= len(sequence.kept.pages)
            sequence.kept = None

    # Coming back

    def reach(self, sequence: Sequence, match: Match) -> int:
        """Tokens of a waiting sequence that need not be computed."""
        kept = sequence.kept
        return match.num_tokens if kept is None else max(kept.num_tokens, match.num_tokens)

    def find(self, sequence: Sequence, match: Match) -> Incoming | None:
        """What is to come back behind the full pages of a match; None for nothing."""
        kept = sequence.kept
        if kept is None or kept.num_tokens <= match.num_tokens:
            return None
        first = match.num_tokens // self._pool.page_size
        return Incoming(first, kept.pages[first:], kept.num_tokens)

    def bring(self, sequence: Sequence, incoming: Incoming, take: Callable[[], None]) -> int:
        """Let pages come back to a sequence that was admitted.

        Args:
            sequence: whose they are; it holds all pages before them.
            incoming: what comes.
            take: gives the sequence another page.

        Returns:
            Tokens that are computed of it once they are there.
        """
        for _ in incoming.pages:
            take()
        pages = sequence.pages[incoming.first :]
        self._pool.arrivals.add(pages, incoming.pages, lambda: None)
        return incoming.num_tokens

    def start(self) -> None:
        """Set in motion what is to come in this step."""
        self._pool.arrivals.start()

    def settle(self) -> None:
        """Wait for what is on its way: pages that it comes to are about to change hands."""
        self._pool.arrivals.wait()
