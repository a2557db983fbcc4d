"""Operator actions on single sequences and pages: hold, release, bump, evict.

None of them acts within a step: running sequences are paused at the next step boundary, like
preempted ones; everything else takes effect at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from gatewayd_engine.core.lifecycle import SequenceLifecycle
from gatewayd_engine.core.telemetry.time_attribution import TimeAttribution
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.process.messages import Bump, Evict, Evicted
from gatewayd_engine.process.plugin_faults import RequestRejected
from gatewayd_engine.scheduling.placement import Placement
from gatewayd_engine.state.in_flight import InFlight
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.scheduling import Priority

_MOST_EVICTED = 8192
"""Pages evicted at most between two steps: some 40 ms."""


@dataclass(slots=True, eq=False, repr=False)
class OperatorActions:
    """Operator actions on sequences and cached pages.

    Args:
        queue: the engine's sequence table.
        pages: page allocator of the pool.
        placement: removes sequences from the batch.
        strategies: the scheduler, whose queue has the waiting sequences.
        lifecycle: finds all live sequences, including forks that wait for a sibling's prompt.
        attribution: notified of running sequences whose computed tokens are lost.
    """

    _queue: Queue
    _pages: Pages
    _placement: Placement
    _strategies: Strategies
    _lifecycle: SequenceLifecycle
    _attribution: TimeAttribution
    _paused: set[int] = field(default_factory=set)
    _pending: set[int] = field(default_factory=set)  # ids to pause

    def pause_sequences(self, sequence_ids: Many[int]) -> None:
        """Stop the progress of sequences from the next step on; unknown ids are ignored.

        Sequences that wait for a prompt computed by one of them wait as well.
        """
        self._discard_ended()
        new = {i for i in sequence_ids if self._lifecycle.find(i) is not None} - self._paused
        self._paused |= new
        self._pending |= new

    def resume_sequences(self, sequence_ids: Many[int]) -> None:
        """Let paused sequences continue; other ids are ignored."""
        for sequence_id in sequence_ids:
            self._paused.discard(sequence_id)
            self._pending.discard(sequence_id)
            sequence = self._queue.find(sequence_id)
            # One that was still pending has not left the scheduler's queue.
            if sequence is not None and sequence.slot in self._queue.paused:
                self._lifecycle.recovery.fenced(partial(self._resume, sequence), redo=False)
        self._discard_ended()

    def pause_pending(self) -> None:
        """Pause the pending sequences, before a plan is made.

        Raises:
            InFlight: a launched step that has not completed computes one of them.
        """
        # Discarded one by one: after an exception the rest is still pending.
        for sequence_id in list(self._pending):
            sequence = self._queue.find(sequence_id)
            if sequence is not None:
                had_run = sequence.row >= 0
                self._pause(sequence)
                if had_run:
                    self._attribution.mark_lost(sequence.slot)
                self._pending.discard(sequence_id)
            # A fork that waits for its leader stays pending until it is enqueued.
            elif self._lifecycle.find(sequence_id) is None:
                self._pending.discard(sequence_id)

    def bump(self, message: Bump) -> None:
        """Change the priority class of sequences, or move them to the front of their class.

        Unknown ids are ignored.
        """
        # The command has no answer: an unknown class is ignored.
        if message.priority not in (None, *Priority):
            return
        for sequence_id in message.sequences:
            sequence = self._lifecycle.find(sequence_id)
            if sequence is None:
                continue
            if message.priority is None:
                sequence.is_urgent = True
            else:
                sequence.priority = message.priority
                wish = math.inf if message.deadline is None else message.deadline
                sequence.deadline = sequence.submitted + wish
            # Forks that wait for a leader have no slot yet; they are enqueued with the new class.
            if sequence.slot >= 0:
                self._lifecycle.recovery.fenced(partial(self._move, sequence), redo=True)

    def evict(self, message: Evict) -> Evicted:
        """Evict unreferenced cached pages, up to the limit for one step boundary.

        Raises:
            RequestRejected: the eviction strategy does not support it, or the page is not cached.
        """
        pages, page = self._pages, message.page
        if not pages.can_uncache:
            raise RequestRejected(
                "the eviction strategy in use evicts only pages that it has chosen itself"
            )
        if page is not None and not pages.is_known(page):
            raise RequestRejected(f"page {page} is not cached")
        if page is not None:
            chosen = pages.descendants(page)
        elif message.tenant is None:
            chosen = pages.cached_pages(None)
        else:
            # A tenant without requests has no pages, and must not get a number by this.
            number = self._queue.tenants.find(message.tenant)
            chosen = [] if number is None else pages.cached_pages(number)
        # Deepest first, so that a limited eviction leaves no descendants without their parents.
        free = [one for one in chosen if not pages.is_referenced(one)]
        before, now = pages.num_free, free[:_MOST_EVICTED]
        # Repeatable after a fault: pages that are not cached are skipped.
        evict = partial(self._placement.prefixes.evict, now)
        self._lifecycle.recovery.fenced(evict, redo=True)
        evicted, skipped = pages.num_free - before, len(chosen) - len(free)
        return Evicted(message.number, evicted, skipped, left=len(free) - len(now))

    # Each of these completes, or has not started, when a strategy raises.

    def _pause(self, sequence: Sequence) -> None:
        """Remove a sequence from the batch, or from the scheduler's queue.

        Raises:
            InFlight: a launched step that has not completed computes it.
        """
        slot, queue = sequence.slot, self._queue
        if slot in queue.paused:
            return
        if sequence.row >= 0:
            if queue.in_flight[slot]:
                raise InFlight
            # The victim is known; the preemption strategy decides between swap and recomputation.
            victim = self._placement.preemption.choose(np.array([slot], np.int32))
            self._placement.preemption.requeue(sequence, victim.mode)
        # A waiting fork would retain its prompt's pages for as long as it is paused.
        inherited, sequence.inherited = sequence.inherited, []
        self._pages.release(inherited[::-1])
        queue.pause(slot)
        self._placement.deferral.discard(slot)
        # The scheduler is called last: one that takes over after a fault gets `queue.waiting` only.
        self._strategies.plan.dequeue(slot)

    def _resume(self, sequence: Sequence) -> None:
        """Enqueue a paused sequence again: at the front of its class if it has run before."""
        self._queue.resume(sequence.slot)
        try:
            self._enqueue(sequence)
        finally:
            self._placement.on_enqueued(sequence)

    def _move(self, sequence: Sequence) -> None:
        """Apply a changed priority class, deadline or urgency to a queued sequence."""
        slot, queue = sequence.slot, self._queue
        queue.view.priority[slot] = sequence.priority
        queue.view.deadline[slot] = sequence.deadline
        if sequence.is_urgent:
            queue.prioritize(slot)
        if slot in queue.waiting:
            self._strategies.plan.dequeue(slot)
            self._enqueue(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        is_first = sequence.was_admitted or sequence.is_urgent
        self._strategies.plan.enqueue(sequence.slot, self._queue.view, front=is_first)

    def _discard_ended(self) -> None:
        self._paused = {i for i in self._paused if self._lifecycle.find(i) is not None}
