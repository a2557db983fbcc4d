"""What an operator does to single sequences and pages: hold, release, bump, evict.

Nothing of it is done within a step: who runs is held at the next boundary, like one that had to
give way, and everything else at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from functools import partial

import numpy as np

from gatewayd_engine.core.lifecycle import SequenceLifecycle
from gatewayd_engine.core.telemetry.time_attribution import Attribution
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
"""Pages that are given up between two steps: some 40 ms."""


class Operating:
    """Sequences that an operator holds or prefers.

    Args:
        queue: has them.
        pages: of the pool.
        placement: takes them out of the batch.
        strategies: with the scheduler, which has those in line that wait.
        lives: knows those, too, that wait for a sibling's prompt.
        attribution: told who had computed something that is lost.
    """

    def __init__(
        self,
        queue: Queue,
        pages: Pages,
        placement: Placement,
        strategies: Strategies,
        lives: SequenceLifecycle,
        attribution: Attribution,
    ) -> None:
        self._queue = queue
        self._pages = pages
        self._placement = placement
        self._strategies = strategies
        self._lives = lives
        self._attribution = attribution
        self._held: set[int] = set()
        self._coming: set[int] = set()  # of those, who is not parked yet

    def hold(self, sequence_ids: Many[int]) -> None:
        """Let sequences make no progress from the next step on; unknown ids are ignored.

        Whoever waits for the prompt that one of them computes waits with it.
        """
        self._forget_ended()
        new = {i for i in sequence_ids if self._lives.find(i) is not None} - self._held
        self._held |= new
        self._coming |= new

    def release(self, sequence_ids: Many[int]) -> None:
        """Let held sequences go on; others are ignored."""
        for sequence_id in sequence_ids:
            self._held.discard(sequence_id)
            self._coming.discard(sequence_id)
            sequence = self._queue.find(sequence_id)
            if sequence is not None and sequence.slot in self._queue.parked:
                self._lives.recovery.fenced(partial(self._unpark, sequence), redo=False)
        self._forget_ended()

    def settle(self) -> None:
        """Put out who is held, before a plan is made.

        Raises:
            InFlight: a step that has not landed computes one of them.
        """
        for sequence_id in list(self._coming):
            sequence = self._queue.find(sequence_id)
            if sequence is not None:
                had_run = sequence.row >= 0
                self._park(sequence)
                if had_run:
                    self._attribution.lost(sequence.slot)
                self._coming.discard(sequence_id)
            elif self._lives.find(sequence_id) is None:
                self._coming.discard(sequence_id)

    def bump(self, message: Bump) -> None:
        """Change the class of sequences, or put them first in theirs; unknown ids are ignored."""
        if message.priority not in (None, *Priority):
            return
        for sequence_id in message.sequences:
            sequence = self._lives.find(sequence_id)
            if sequence is None:
                continue
            if message.priority is None:
                sequence.is_urgent = True
            else:
                sequence.priority = message.priority
                wish = math.inf if message.deadline is None else message.deadline
                sequence.deadline = sequence.submitted + wish
            if sequence.slot >= 0:
                self._lives.recovery.fenced(partial(self._move, sequence), redo=True)

    def evict(self, message: Evict) -> Evicted:
        """Give up cached pages that nobody uses, as many as may be given up between two steps.

        Raises:
            Refused: the eviction gives up none that it has not chosen, or there is no such page.
        """
        pages, page = self._pages, message.page
        if not pages.may_drop:
            raise RequestRejected(
                "the eviction in use gives up no page that it has not chosen itself"
            )
        if page is not None and not pages.is_known(page):
            raise RequestRejected(f"page {page} is not cached")
        if page is not None:
            chosen = pages.behind(page)
        elif message.tenant is None:
            chosen = pages.known_of(None)
        else:
            # Whoever asked for nothing has nothing, and gets no number by this.
            number = self._queue.tenants.find(message.tenant)
            chosen = [] if number is None else pages.known_of(number)
        free = [one for one in chosen if not pages.is_held(one)]
        before, now = pages.num_free, free[:_MOST_EVICTED]
        evict = partial(self._placement.prefixes.evict, now)
        self._lives.recovery.fenced(evict, redo=True)
        gone, kept = pages.num_free - before, len(chosen) - len(free)
        return Evicted(message.number, gone, kept, left=len(free) - len(now))

    # All of it is whole, or not begun, when a strategy raises.

    def _park(self, sequence: Sequence) -> None:
        """Take a sequence out of the batch, or out of the scheduler's line.

        Raises:
            InFlight: a step that has not landed computes it.
        """
        slot, queue = sequence.slot, self._queue
        if slot in queue.parked:
            return
        if sequence.row >= 0:
            if queue.in_flight[slot]:
                raise InFlight
            victim = self._placement.preemption.choose(np.array([slot], np.int32))
            self._placement.preemption.put_out(sequence, victim.mode)
        inherited, sequence.inherited = sequence.inherited, []
        self._pages.give_back(inherited[::-1])
        queue.park(slot)
        self._placement.held.left(slot)
        self._strategies.plan.dequeue(slot)

    def _unpark(self, sequence: Sequence) -> None:
        """It waits again: before others of its class if it has run."""
        self._queue.unpark(sequence.slot)
        try:
            self._enqueue(sequence)
        finally:
            self._placement.waits(sequence)

    def _move(self, sequence: Sequence) -> None:
        """It is of another class, or first in its own."""
        slot, queue = sequence.slot, self._queue
        queue.view.priority[slot] = sequence.priority
        queue.view.deadline[slot] = sequence.deadline
        if sequence.is_urgent:
            queue.urge(slot)
        if slot in queue.waiting:
            self._strategies.plan.dequeue(slot)
            self._enqueue(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        is_first = sequence.was_admitted or sequence.is_urgent
        self._strategies.plan.enqueue(sequence.slot, self._queue.view, front=is_first)

    def _forget_ended(self) -> None:
        self._held = {i for i in self._held if self._lives.find(i) is not None}
