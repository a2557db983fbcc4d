"""What the sequences of a step are computing, so that those who wait need not compute it too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.cache.partial_pages import common_length
from gatewayd_engine.cache.prefix_cache import PrefixCache
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.sequence import Sequence


class SharedPrefills:
    """The prompts of one step, by salt and first page; made anew for each step that admits.

    Args:
        queue: of the engine.
        prefixes: knows what is cached.
        page_size: tokens per page.
        slots: running sequences that compute in it.
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
        # What is computed by a step that has not landed is not in the cache yet.
        landed = queue.view.num_computed[slots] - queue.in_flight[slots]
        for slot in slots[full > landed].tolist():
            self.add(slot)

    def add(self, slot: int) -> None:
        """A sequence that was just admitted computes, too."""
        sequence = self._queue[slot]
        first = sequence.tokens[: self._page_size].tobytes()
        self._prompts.setdefault((sequence.salt, first), []).append(sequence)

    def ahead_of(self, slot: int) -> tuple[int, int] | None:
        """Find one that is about to compute more full pages of a waiting sequence's beginning.

        The sequence is then better off waiting: these pages will be cached.

        Returns:
            The slot of the other, and how many tokens it has computed when it has nothing more
            for this one.
        """
        sequence, size = self._queue[slot], self._page_size
        others = self._prompts.get((sequence.salt, sequence.tokens[:size].tobytes()))
        if others is None or sequence.inherited or not sequence.shares:
            return None
        view = self._queue.view
        num_tokens = sequence.whole(int(view.num_tokens[slot]))
        cached = self._prefixes.cached(sequence, num_tokens) // size * size
        # Most of those that share the first page part from it here.
        next_page = sequence.tokens[cached : min(cached + size, num_tokens - 1)]
        if len(next_page) < size:
            return None
        for other in others:
            if view.priority[other.slot] > view.priority[slot]:
                continue  # a scheduler may let it get on as slowly as its class deserves
            if not np.array_equal(other.tokens[cached : cached + size], next_page):
                continue
            most = min(num_tokens - 1, other.whole(int(view.num_tokens[other.slot])))
            common = common_length(sequence.tokens[:most], other.tokens[:most]) // size * size
            landed = view.num_computed[other.slot] - self._queue.in_flight[other.slot]
            if common > cached and common > landed:
                return other.slot, common
        return None
