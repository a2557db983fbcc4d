"""First-come-first-served scheduler over one token budget."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import chain, islice
from typing import TYPE_CHECKING

import numpy as np

from gatewayd_hooks.helpers.waiting import WaitingLine
from gatewayd_hooks.scheduling import Plan, QueueView
from gatewayd_sched_fcfs.config import FcfsConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources


_WINDOW = 64
"""Number of waiting sequences among which those with the longest cached prefix may go first."""


class Fcfs:
    """Schedules decodes, then prompts already started, then the sequence that waited longest.

    With patience, sequences that have not waited long yield to those with longer cached prefixes,
    before these are evicted (longest shared prefix first, as in RadixAttention).
    """

    def __init__(self, config: FcfsConfig) -> None:
        self._max_chunk = config.max_prefill_chunk
        self._patience = config.prefix_patience
        self._waiting = WaitingLine()

    def open(self, resources: EngineResources) -> None:
        """Determine the largest chunk."""
        budget = resources.max_batch_tokens
        self._max_chunk = min(self._max_chunk or budget, budget)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def enqueue(self, slot: int, view: QueueView, *, front: bool) -> None:
        """Add a waiting sequence."""
        self._waiting.enter(slot, float(view.arrival[slot]), front=front)

    def dequeue(self, slot: int) -> None:
        """Remove a waiting sequence that was admitted or has left."""
        self._waiting.leave(slot)

    def plan(self, view: QueueView) -> Plan:
        """Choose the next step."""
        slots, tokens = self._running(view)
        more_slots, more_tokens = self._admissions(view, view.token_budget - int(tokens.sum()))
        # In most steps nothing is admitted, and nothing is copied.
        if not more_slots:
            return Plan(slots, tokens)
        return Plan(
            np.concatenate([slots, np.array(more_slots, np.int32)]),
            np.concatenate([tokens, np.array(more_tokens, np.int32)]),
        )

    def _running(self, view: QueueView) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return grants of running sequences: decodes before chunks, then in order of admission."""
        slots = view.running
        wants = np.minimum(view.num_tokens[slots] - view.num_computed[slots], self._max_chunk)
        is_chunk = wants > 1
        if is_chunk.any():
            order = np.argsort(is_chunk, kind="stable")
            slots, wants = slots[order], wants[order]
        reach = np.cumsum(wants)
        if not len(reach) or reach[-1] <= view.token_budget:
            return slots, wants
        # The first one that exceeds the budget gets what is left of it.
        last = int(np.searchsorted(reach, view.token_budget))
        tokens = wants[: last + 1].copy()
        tokens[last] -= reach[last] - view.token_budget
        return slots[: last + 1], tokens

    def _admissions(self, view: QueueView, budget: int) -> tuple[list[int], list[int]]:
        """Return grants of waiting sequences, in order, while budget, rows and pages last."""
        slots: list[int] = []
        tokens: list[int] = []
        places = view.max_running - len(view.running)
        pages = view.free_pages
        if budget < 1 or places < 1:
            return slots, tokens
        for slot in self._order(view):
            uncached = view.uncached(slot)
            grant = min(uncached, self._max_chunk, budget)
            slots.append(slot)
            tokens.append(grant)
            budget -= grant
            places -= 1
            pages -= -(-uncached // view.page_size)
            # The first without enough pages is still granted: the engine decides, and no later one
            # may overtake it.
            if budget < 1 or places < 1 or pages < 0:
                break
        return slots, tokens

    def _order(self, view: QueueView) -> Iterable[int]:
        """Return waiting sequences in the order of admission."""
        if not self._patience:
            return self._waiting.without(view.held)
        # No sequence is overtaken for longer than this, however many arrive.
        spared = time.monotonic() - self._patience

        def rank(slot: int) -> int:
            if self._waiting.is_front(slot) or view.arrival[slot] <= spared:
                return -1 << 31
            # The longest cached prefix first; the sort is stable, so equal ones stay in order of
            # arrival.
            return view.uncached(slot) - int(view.num_tokens[slot])

        waiting = self._waiting.without(view.held)
        window = sorted(islice(waiting, _WINDOW), key=rank)
        return chain(window, waiting)
