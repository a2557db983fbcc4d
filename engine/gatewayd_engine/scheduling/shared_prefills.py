"""Prefixes that the current step computes, so that waiting sequences need not compute them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.cache.following_pages import common_length
from gatewayd_engine.cache.prefix_cache import PrefixCache
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.sequence import Sequence


class SharedPrefills:
    """Prompts being computed in one step, by salt and first page; built for each admitting step.

    Args:
        queue: the engine's sequence table.
        prefixes: the prefix cache.
        page_size: tokens per page.
        slots: running sequences that compute in the step.
    """

    __slots__ = ("_page_size", "_prefixes", "_prompts", "_queue")

    def __init__(
        self, queue: Queue, prefixes: PrefixCache, page_size: int, slots: NDArray[np.int32]
    ) -> None:
        self._queue = queue
        self._prefixes = prefixes
        self._page_size = page_size
        self._prompts: dict[tuple[bytes, bytes], list[Sequence]] = {}
        full = queue.view.num_tokens[slots] // page_size * page_size
        # What an uncompleted step computes is not in the prefix cache yet.
        completed = queue.view.num_computed[slots] - queue.in_flight[slots]
        # Others wait for full pages only, so a leader must have some left to complete.
        for slot in slots[full > completed].tolist():
            self.add(slot)

    def add(self, slot: int) -> None:
        """Add a sequence that was just admitted."""
        sequence = self._queue[slot]
        first = sequence.tokens[: self._page_size].tobytes()
        self._prompts.setdefault((sequence.salt, first), []).append(sequence)

    def find_leader(self, slot: int) -> tuple[int, int] | None:
        """Find a sequence about to compute more full pages of a waiting sequence's prefix.

        Waiting is then cheaper than computing, because these pages will be cached.

        Returns:
            The leader's slot, and the number of tokens it has computed when the shared prefix is
            complete; None if there is no leader.
        """
        sequence, size = self._queue[slot], self._page_size
        others = self._prompts.get((sequence.salt, sequence.tokens[:size].tobytes()))
        if others is None or sequence.inherited or not sequence.may_share:
            return None
        view = self._queue.view
        num_tokens = sequence.exact_len(int(view.num_tokens[slot]))
        cached = self._prefixes.cached(sequence, num_tokens) // size * size
        # Most prompts that share the first page diverge here.
        next_page = sequence.tokens[cached : min(cached + size, num_tokens - 1)]
        if len(next_page) < size:
            return None
        for other in others:
            if view.priority[other.slot] > view.priority[slot]:
                continue  # the scheduler may make slow progress with a lower priority class
            if not np.array_equal(other.tokens[cached : cached + size], next_page):
                continue
            most = min(num_tokens - 1, other.exact_len(int(view.num_tokens[other.slot])))
            common = common_length(sequence.tokens[:most], other.tokens[:most]) // size * size
            completed = view.num_computed[other.slot] - self._queue.in_flight[other.slot]
            # Pages that the leader has completed were published already: waiting would not add any.
            if common > cached and common > completed:
                return other.slot, common
        return None
