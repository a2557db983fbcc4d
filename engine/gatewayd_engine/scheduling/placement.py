"""Placement of sequences: moves them between queue and batch, and finds pages for a plan."""

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
from gatewayd_engine.scheduling.page_growth import PageGrowth
from gatewayd_engine.scheduling.preemption import Preemption
from gatewayd_engine.scheduling.prompt_shortening import PromptShortening
from gatewayd_engine.scheduling.shared_prefills import SharedPrefills
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.scheduling import Plan
from gatewayd_hooks.strategy import Kind

_AHEAD = 8
"""Number of waiting sequences whose pages are prefetched from KV tiers."""


class Placement:
    """Transitions of sequences into the queue, into the running batch, and out of it.

    Attributes:
        offload: KV tiers and swapped pages.
        prefixes: the prefix cache.
        pins: pages pinned by an operator.
        deferral: waiting sequences that are not scheduled yet.
        preemption: returns running sequences to the queue.
        growth: page allocation for running sequences.
        shortening: page replacement for compacted prompts.
    """

    def __init__(
        self, queue: Queue, rows: RunningBatch, pool: KvPool, pages: Pages, strategies: Strategies
    ) -> None:
        self._queue = queue
        self._pages = pages
        self._strategies = strategies
        self._page_size = pool.page_size
        self._block_tables = BlockTables(queue, rows, pool, pages)
        self.offload = KvOffload(pool, pages, strategies)
        self.prefixes = PrefixCache(queue, pages, self.offload, strategies, rows)
        self.pins = OperatorPins(pages, self.prefixes, strategies, pool.page_size)
        self._admission = Admission(
            queue, rows, pages, self._block_tables, self.prefixes, self.offload, strategies
        )
        self.deferral = Deferral(
            queue,
            self.prefixes,
            self.offload,
            strategies,
            pool.page_size,
            self._admission.headroom,
        )
        self.preemption = Preemption(queue, rows, self._admission, self.offload, strategies)
        self.growth = PageGrowth(
            queue, pages, self._block_tables, self._admission, self.preemption, pool.page_size
        )
        self.shortening = PromptShortening(
            pool, pages, self._block_tables, self.growth, self.preemption, self.offload
        )

    # Into the queue

    def enqueue(self, sequence: Sequence, *, front: bool, parent: Sequence | None = None) -> None:
        """Enqueue a new sequence; its prompt is that of ``parent``, if it has one."""
        slot = self._queue.add(sequence)
        try:
            if parent is None:
                self.prefixes.start_sequence(sequence)
            else:
                self.prefixes.fork(parent, sequence)
        finally:
            # Even if the prefix cache raises: the scheduler must know every waiting sequence.
            self._strategies.plan.enqueue(slot, self._queue.view, front=front)
        self.on_enqueued(sequence)

    def on_enqueued(self, sequence: Sequence) -> None:
        """Check whether a sequence that the scheduler has just got must be deferred."""
        self.deferral.track(sequence)
        if sequence.grammar is not None:
            self.deferral.defer_for_grammar(sequence)
        if len(self._queue.waiting) <= _AHEAD:
            self.deferral.defer_for_tier(sequence)

    # Into the batch

    def place(self, plan: Plan) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Find pages for a validated plan.

        Returns:
            Slots to compute and tokens for each: what the plan grants, without sequences that
            were preempted for others, waiting ones for which there is no room, and deferred ones.

        Raises:
            InFlight: a launched step that has not completed computes a sequence to be preempted.
        """
        queue, view = self._queue, self._queue.view
        # Planned preemptions first: their pages and rows are for the rest of the plan.
        self.preemption.preempt_planned(plan)
        slots, tokens, waiting = plan.slots, plan.tokens, []
        if slots is not view.running:
            is_running = queue.row[slots] >= 0
            grants = zip(slots[~is_running].tolist(), tokens[~is_running].tolist(), strict=True)
            waiting = [(slot, count) for slot, count in grants if slot not in view.held]
            slots, tokens = slots[is_running], tokens[is_running]
        if self._strategies.compacts is not None:
            tokens = self._cap_at_prompt(slots, tokens)
        preempted = self.growth.grow(slots, tokens)
        if preempted:
            # Waiting sequences come after those that were just preempted.
            stays = ~np.isin(slots, list(preempted))
            slots, tokens = slots[stays], tokens[stays]
            unplaced = waiting
        else:
            admitted, unplaced = self._admit(waiting, slots)
            if admitted:
                more = np.array(admitted, np.int32)
                slots = np.concatenate([slots, more[:, 0]])
                tokens = np.concatenate([tokens, more[:, 1]])
        view.unplaced = frozenset(slot for slot, _ in unplaced)
        self.deferral.computing = slots
        return slots, tokens

    def _cap_at_prompt(
        self, slots: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Cap grants at the end of the prompt for sequences to be compacted there."""
        left = self._queue.prompt_len[slots] - self._queue.view.num_computed[slots]
        goes_on = (left > 0) & (tokens > left)
        for i in np.flatnonzero(goes_on).tolist():
            goes_on[i] = self._queue[int(slots[i])].compacts
        return np.where(goes_on, left, tokens).astype(tokens.dtype)

    def _admit(
        self, waiting: list[tuple[int, int]], computing: NDArray[np.int32]
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Admit waiting sequences, in the order of the plan, until one finds no pages.

        Args:
            waiting: slots and their grants.
            computing: slots of the running sequences that compute in this step.

        Returns:
            Admitted slots with the tokens they compute, and the grants for which there is no
            room. Deferred sequences are in neither list.
        """
        if not waiting:
            return [], []
        admitted: list[tuple[int, int]] = []
        unplaced: list[tuple[int, int]] = []
        deferred: list[int] = []
        before = self.deferral.computing
        landing = before[self._queue.in_flight[before] > 0]
        if len(landing):
            # Results of an uncompleted step are not in the prefix cache yet.
            computing = np.union1d(computing, landing)
        underway = SharedPrefills(self._queue, self.prefixes, self._page_size, computing)
        for i, (slot, grant) in enumerate(waiting):
            if self.deferral.defer(slot, underway):
                deferred.append(slot)
                continue
            count = self._admission.try_admit(slot, grant)
            if not count and self._admission.quota_shortfall:
                # Only the tenant's quota is exhausted: sequences of other tenants may go on.
                self.deferral.defer_for_quota(slot, self._admission.quota_shortfall)
                continue
            if not count:
                unplaced = waiting[i:]
                break
            admitted.append((slot, count))
            # Later sequences of the same plan may wait for its prefix.
            underway.add(slot)
        self.deferral.defer_alike(deferred, underway)
        # Starts to copy pages into the pool before the batch is gathered.
        self.offload.start()
        return admitted, unplaced

    # Out of the batch

    def drain_admitted(self) -> list[Admitted]:
        """Return the sequences admitted since the last call."""
        admitted, self._admission.admitted = self._admission.admitted, []
        return admitted

    def scrub(self, sequence: Sequence) -> None:
        """See ``BlockTables``."""
        self._block_tables.scrub(sequence)

    def cache_tail(self, sequence: Sequence) -> None:
        """Cache the last, partial page of a sequence about to finish; see ``PrefixCache``."""
        if sequence.row >= 0:
            self.prefixes.cache_tail(sequence)

    def release(self, sequence: Sequence) -> None:
        """Release everything that a running or waiting sequence holds, because it has ended."""
        inherited, sequence.inherited = sequence.inherited, []
        self.prefixes.discard_lookup(sequence)
        try:
            if sequence.row >= 0:
                self._admission.release_running(sequence, 0)
            else:
                self._strategies.plan.dequeue(sequence.slot)
        finally:
            self._queue.remove(sequence)
            # Tail first: pages released first are evicted first.
            self._pages.release(inherited[::-1])

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Queue a sequence that shares the parent's computed prompt.

        It computes the last prompt token again, for the logits; the page of that token is copied
        by the sequence that writes to it first.
        """
        num_shared = -(-(parent.prompt_len - 1) // self._page_size)
        child.inherited = parent.pages[:num_shared]
        for page in child.inherited:
            self._pages.share(page)
        self._block_tables.forked.add(parent.slot)
        child.was_counted = True
        self.enqueue(child, front=True, parent=parent)

    def adopt(self) -> None:
        """Bind the allocator to a strategy that has taken over the state of its predecessor."""
        self._pages.use(self._strategies.plan)

    def rebuild(self, kind: Kind) -> None:
        """Rebuild the state of a new strategy of a kind from the engine's own state."""
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
                # No page stays cached, so the eviction strategy starts without pages, too.
                self._strategies.reset(Kind.EVICTION)
                self._pages.replace_prefix_cache(self._strategies.plan)
                self.prefixes.rebuild()
