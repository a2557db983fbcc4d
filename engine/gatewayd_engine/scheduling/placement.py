"""Moves sequences between the queue and the batch, with pages for what a plan grants."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.cache.offload import KvOffload
from gatewayd_engine.cache.pins import OperatorPins
from gatewayd_engine.cache.prefix_cache import PrefixCache
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.process.messages import Admitted
from gatewayd_engine.scheduling.admission import Admission
from gatewayd_engine.scheduling.block_tables import BlockTables
from gatewayd_engine.scheduling.deferral import Deferral
from gatewayd_engine.scheduling.page_growth import Growth
from gatewayd_engine.scheduling.preemption import Preemption
from gatewayd_engine.scheduling.prompt_shortening import Shortening
from gatewayd_engine.scheduling.shared_prefills import SharedPrefills
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.scheduling import Plan
from gatewayd_hooks.strategy import Kind

_AHEAD = 8
"""Sequences whose pages are read while they wait for their turn."""


class Placement:
    """Lets sequences into the queue, into the batch and out of it.

    Attributes:
        outside: what is kept outside the pool.
        prefixes: what the prefix cache is asked and told.
        pins: cached pages that an operator wants kept.
        held: who had better wait.
        preemption: who gives way.
        growth: pages for those who run.
        shortening: fewer pages for those of whose prompts few keys stay.
    """

    def __init__(
        self, queue: Queue, rows: RunningBatch, pool: KvPool, pages: Pages, strategies: Strategies
    ) -> None:
        self._queue = queue
        self._pages = pages
        self._strategies = strategies
        self._page_size = pool.page_size
        self._holdings = BlockTables(queue, rows, pool, pages)
        self.outside = KvOffload(pool, pages, strategies)
        self.prefixes = PrefixCache(queue, pages, self.outside, strategies, rows)
        self.pins = OperatorPins(pages, self.prefixes, strategies, pool.page_size)
        self._admission = Admission(
            queue, rows, pages, self._holdings, self.prefixes, self.outside, strategies
        )
        self.held = Deferral(
            queue,
            self.prefixes,
            self.outside,
            strategies,
            pool.page_size,
            self._admission.room,
        )
        self.preemption = Preemption(queue, rows, self._admission, self.outside, strategies)
        self.growth = Growth(
            queue, pages, self._holdings, self._admission, self.preemption, pool.page_size
        )
        self.shortening = Shortening(
            pool, pages, self._holdings, self.growth, self.preemption, self.outside
        )

    # Into the queue

    def enqueue(self, sequence: Sequence, *, front: bool, parent: Sequence | None = None) -> None:
        """A new sequence waits; its prompt is that of ``parent``, if it has one."""
        slot = self._queue.add(sequence)
        try:
            if parent is None:
                self.prefixes.begin(sequence)
            else:
                self.prefixes.fork(parent, sequence)
        finally:
            self._strategies.plan.enqueue(slot, self._queue.view, front=front)
        self.waits(sequence)

    def waits(self, sequence: Sequence) -> None:
        """A sequence is in the scheduler's line: something may have to come first."""
        self.held.came(sequence)
        if sequence.grammar is not None:
            self.held.hold_for_grammar(sequence)
        if len(self._queue.waiting) <= _AHEAD:
            self.held.hold_for_tier(sequence)

    # Into the batch

    def take(self, plan: Plan) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Find pages for a checked plan.

        Returns:
            Slots to compute and tokens for each: what the plan grants, less those who were
            preempted for others, those waiting ones for whom there is no room, and those who had
            better wait.

        Raises:
            InFlight: a step that has not landed computes one who is to wait again.
        """
        queue, view = self._queue, self._queue.view
        self.preemption.make_way(plan)
        is_running = queue.row[plan.slots] >= 0
        slots, tokens = plan.slots[is_running], plan.tokens[is_running]
        if self._strategies.compacts is not None:
            tokens = self._up_to_prompts(slots, tokens)
        grants = zip(
            plan.slots[~is_running].tolist(), plan.tokens[~is_running].tolist(), strict=True
        )
        waiting = [(slot, count) for slot, count in grants if slot not in view.held]
        preempted = self.growth.grow(slots, tokens)
        if preempted:
            # Whoever waits is behind those who were just put out.
            keep = ~np.isin(slots, list(preempted))
            slots, tokens = slots[keep], tokens[keep]
            unplaced = waiting
        else:
            admitted, unplaced = self._admit(waiting, slots)
            more = np.array(admitted, np.int32).reshape(-1, 2)
            slots = np.concatenate([slots, more[:, 0]])
            tokens = np.concatenate([tokens, more[:, 1]])
        view.unplaced = frozenset(slot for slot, _ in unplaced)
        self.held.computing = slots
        return slots, tokens

    def _up_to_prompts(
        self, slots: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Grants of running sequences; one that may become shorter does so before it goes on."""
        left = self._queue.prompt_len[slots] - self._queue.view.num_computed[slots]
        goes_on = (left > 0) & (tokens > left)
        for i in np.flatnonzero(goes_on).tolist():
            goes_on[i] = self._queue[int(slots[i])].compacts
        return np.where(goes_on, left, tokens).astype(tokens.dtype)

    def _admit(
        self, waiting: list[tuple[int, int]], computing: NDArray[np.int32]
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Admit those who wait, in the order of the plan, until one finds no pages.

        Args:
            waiting: slots and their grants.
            computing: slots of the running sequences that compute in this step.

        Returns:
            Who was admitted and computes how many tokens, and the grants for which there is no
            room. Those who had better wait are held, and among neither.
        """
        if not waiting:
            return [], []
        admitted: list[tuple[int, int]] = []
        unplaced: list[tuple[int, int]] = []
        held: list[int] = []
        before = self.held.computing
        landing = before[self._queue.in_flight[before] > 0]
        if len(landing):
            # What the step before computes is not in the cache yet.
            computing = np.union1d(computing, landing)
        underway = SharedPrefills(self._queue, self.prefixes, self._page_size, computing)
        for i, (slot, grant) in enumerate(waiting):
            if self.held.hold(slot, underway):
                held.append(slot)
                continue
            count = self._admission.admit(slot, grant)
            if not count and self._admission.short:
                # Others have what it lacks, and need not wait for it.
                self.held.hold_for_quota(slot, self._admission.short)
                continue
            if not count:
                unplaced = waiting[i:]
                break
            admitted.append((slot, count))
            underway.add(slot)
        self.held.hold_alike(held, underway)
        self.outside.start()
        return admitted, unplaced

    # Out of the batch

    def take_admitted(self) -> list[Admitted]:
        """Who left the queue since the last call."""
        admitted, self._admission.admitted = self._admission.admitted, []
        return admitted

    def scrub(self, sequence: Sequence) -> None:
        """See ``BlockTables``."""
        self._holdings.scrub(sequence)

    def keep_tail(self, sequence: Sequence) -> None:
        """A sequence is about to end well; see ``PrefixCache``."""
        if sequence.row >= 0:
            self.prefixes.keep_tail(sequence)

    def release(self, sequence: Sequence) -> None:
        """A sequence has ended, running or waiting: everything it holds is given back."""
        inherited, sequence.inherited = sequence.inherited, []
        self.prefixes.forget(sequence)
        try:
            if sequence.row >= 0:
                self._admission.leave(sequence, 0)
            else:
                self._strategies.plan.dequeue(sequence.slot)
        finally:
            self._queue.remove(sequence)
            self._pages.give_back(inherited[::-1])

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Queue a sequence that shares the parent's computed prompt.

        It computes the last prompt token again, for the logits; the page of that token is
        copied by whoever writes to it first.
        """
        num_shared = -(-(parent.prompt_len - 1) // self._page_size)
        child.inherited = parent.pages[:num_shared]
        for page in child.inherited:
            self._pages.share(page)
        self._holdings.forked.add(parent.slot)
        child.was_counted = True
        self.enqueue(child, front=True, parent=parent)

    def adopt(self) -> None:
        """Another strategy fills a slot, and knows all that the one before did."""
        self._pages.follow(self._strategies.plan)

    def rebuild(self, kind: Kind) -> None:
        """Another strategy fills a slot: let it learn what the engine knows."""
        plan = self._strategies.plan
        match kind:
            case Kind.SCHEDULER:
                arrival = self._queue.view.arrival
                for slot in sorted(self._queue.waiting, key=lambda slot: float(arrival[slot])):
                    is_urgent = slot in self._queue.view.urgent
                    plan.enqueue(slot, self._queue.view, front=is_urgent)
            case Kind.EVICTION:
                self._pages.replace_eviction(plan)
            case Kind.PREFIX_CACHE:
                self._strategies.renew_eviction()
                self._pages.replace_prefix_cache(self._strategies.plan)
                self.prefixes.rebuild()
