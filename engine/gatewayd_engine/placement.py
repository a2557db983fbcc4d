"""Finds pages for what a plan grants: growth, preemption, forks, release."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.admission import Admission
from gatewayd_engine.faults import blame
from gatewayd_engine.flight import InFlight
from gatewayd_engine.fronts import NO_PAGE, only_pages
from gatewayd_engine.held import Held
from gatewayd_engine.holdings import Holdings
from gatewayd_engine.kv.biases import bias_pages, write_front
from gatewayd_engine.kv.pages import OutOfPages, OverCeiling, Pages
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.messages import Admitted
from gatewayd_engine.outside import Outside
from gatewayd_engine.prefixes import Prefixes
from gatewayd_engine.queue import Queue
from gatewayd_engine.rows import Rows
from gatewayd_engine.sequence import Sequence
from gatewayd_engine.strategies import Strategies
from gatewayd_engine.underway import Underway
from gatewayd_hooks.kv_compression import Compacted
from gatewayd_hooks.preemption import MAX_PREEMPTIONS, PreemptionMode, Victim
from gatewayd_hooks.scheduling import Plan
from gatewayd_hooks.strategy import Kind

_AHEAD = 8
"""Sequences whose pages are read while they wait for their turn."""


class Placement:
    """Moves sequences between the queue and the batch.

    Attributes:
        outside: what is kept outside the pool.
        prefixes: what the prefix cache is asked and told.
        held: who had better wait.
        preemptions: total since the start.
    """

    def __init__(
        self, queue: Queue, rows: Rows, pool: KvPool, pages: Pages, strategies: Strategies
    ) -> None:
        self._queue = queue
        self._pool = pool
        self._pages = pages
        self._strategies = strategies
        self._page_size = pool.page_size
        self._holdings = Holdings(queue, rows, pool, pages)
        self.outside = Outside(pool, pages, strategies)
        self.prefixes = Prefixes(queue, pages, self.outside, strategies, rows)
        self._admission = Admission(
            queue, rows, pages, self._holdings, self.prefixes, self.outside, strategies
        )
        self.held = Held(
            queue,
            self.prefixes,
            self.outside,
            strategies,
            pool.page_size,
            self._admission.room,
        )
        self.preemptions = 0
        self._preempted: list[int] = []

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
        self._make_way(plan)
        is_running = queue.row[plan.slots] >= 0
        slots, tokens = plan.slots[is_running], plan.tokens[is_running]
        if self._strategies.compacts is not None:
            tokens = self._up_to_prompts(slots, tokens)
        grants = zip(
            plan.slots[~is_running].tolist(), plan.tokens[~is_running].tolist(), strict=True
        )
        waiting = [(slot, count) for slot, count in grants if slot not in view.held]
        preempted = self._grow(slots, tokens)
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
        underway = Underway(self._queue, self.prefixes, self._page_size, computing)
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

    @property
    def is_tight(self) -> bool:
        """Whether the next step may put a running sequence out for another's pages."""
        view = self._queue.view
        running = view.running
        computed = view.num_computed[running]
        wants = np.minimum(view.num_tokens[running] - computed, view.token_budget)
        needed = -(-(computed + wants) // self._page_size) - self._queue.num_pages[running]
        most = int(np.maximum(needed, 0).sum()) + len(self._holdings.forked)
        quotas = self._pages.quotas
        if quotas is None:
            return most > self._pages.num_available
        return most > self._pages.num_available - quotas.num_kept or any(
            int(needed[view.tenant[running] == tenant].clip(0).sum()) + len(self._holdings.forked)
            > room
            for tenant in quotas.bounds
            if (room := quotas.room(tenant)) is not None
        )

    def _grow(self, slots: NDArray[np.int32], tokens: NDArray[np.int32]) -> set[int]:
        """Give running sequences the pages that their grants write to."""
        queue, size = self._queue, self._page_size
        computed = queue.view.num_computed[slots]
        needed = -(-(computed + tokens) // size)
        grows = needed > queue.num_pages[slots]
        if self._holdings.forked:
            grows |= np.isin(slots, np.fromiter(self._holdings.forked, np.int32))
        preempted: set[int] = set()
        for i in np.flatnonzero(grows).tolist():
            slot = int(slots[i])
            if slot in preempted:
                continue
            sequence = queue[slot]
            if slot in self._holdings.forked:
                self._unshare(sequence, int(computed[i]), preempted)
            while slot not in preempted and len(sequence.pages) < needed[i]:
                page = self._take(preempted, slot)
                if page is not None:
                    self._holdings.append(sequence, page)
        return preempted

    def stretch(self, slot: int, reach: int) -> int:
        """Give a running sequence pages for tokens that it may never have.

        They must not cost another one its place: only what was not promised to anyone is taken.

        Returns:
            Tokens that its pages hold now.
        """
        sequence, size = self._queue[slot], self._page_size
        tenant = int(self._queue.view.tenant[slot])
        spare = self._admission.room(tenant)
        while len(sequence.pages) * size < reach and spare > 0:
            self._holdings.append(sequence, self._pages.take(tenant))
            spare -= 1
        return len(sequence.pages) * size

    def _take(self, preempted: set[int], slot: int) -> int | None:
        """A page for a running sequence, whoever has to give way; None if it is itself."""
        tenant = int(self._queue.view.tenant[slot])
        while True:
            try:
                return self._pages.take(tenant)
            except OutOfPages as error:
                # At a ceiling only pages of the same tenant help.
                whose = tenant if isinstance(error, OverCeiling) else None
                if self._admission.drop_inherited(whose):
                    continue
                victim = self._victim(whose)
                self.preempt(victim)
                self._queue[victim.slot].preemptions += 1
                preempted.add(victim.slot)
                if victim.slot == slot:
                    return None

    def _make_way(self, plan: Plan) -> None:
        """Let those wait again whom the scheduler puts out, before anything is changed for it."""
        if plan.preempt is None or not len(plan.preempt):
            return
        if self._queue.in_flight[plan.preempt].any():
            raise InFlight
        for i in range(len(plan.preempt)):
            # The scheduler has chosen who; the preemption says how.
            self.preempt(self.choose(plan.preempt[i : i + 1]))

    def _victim(self, tenant: int | None) -> Victim:
        """Choose who gives way; whoever did so often is spared while there are others.

        Args:
            tenant: of whom; None for anybody.
        """
        view = self._queue.view
        running = view.running
        if tenant is not None:
            running = running[view.tenant[running] == tenant]
        rested = running[view.preemptions[running] < MAX_PREEMPTIONS]
        return self.choose(rested if len(rested) else running)

    def choose(self, candidates: NDArray[np.int32]) -> Victim:
        """Let the preemption choose one of some running slots, and how it waits again."""
        queue, plan = self._queue, self._strategies.plan
        with blame(Kind.PREEMPTION):
            if plan.learn is not None:
                plan.learn(self.outside.costs)
            slot, mode = plan.preempt(queue.view, candidates)
            if slot not in candidates:
                raise ValueError(f"chose slot {slot}, which is no candidate")
            return Victim(int(slot), PreemptionMode(mode))

    def _unshare(self, sequence: Sequence, position: int, preempted: set[int]) -> None:
        """Make the page of ``position`` the sequence's own."""
        if self._holdings.is_own(sequence, position):
            return
        page = self._take(preempted, sequence.slot)
        if page is not None:
            self._holdings.copy(sequence, position, page)

    # In fewer pages

    def saves(self, covered: int, kept: int) -> bool:
        """Whether so many keys, with their biases, take fewer pages than what they stand for."""
        size = self._page_size
        return kept // size + bias_pages(self._pool, kept) < covered // size

    def shorten(self, sequence: Sequence, covered: int, kept: int, found: list[Compacted]) -> bool:
        """Let few keys and values stand for the first tokens of a running sequence.

        Their pages are given back before fresh ones are taken: a sequence that fills the pool
        must still fit. What others hold of them, or the prefix cache knows, stays as it is.

        Args:
            sequence: whose prompt is computed; no step computes it.
            covered: tokens that are stood for.
            kept: keys and values that stand for them.
            found: what stands for them, by layer.

        Returns:
            Whether it could; else it had to give way, and computes its prompt anew.
        """
        size, slot = self._page_size, sequence.slot
        first = covered // size
        held = sequence.pages[:first]
        num_fresh = kept // size + bias_pages(self._pool, kept)
        sequence.pages[:first] = [NO_PAGE] * first
        preempted: set[int] = set()
        try:
            self._pages.give_back(held[::-1])
            for i in range(num_fresh):
                page = self._take(preempted, slot)
                if page is None:
                    return False
                sequence.pages[i] = page
        except BaseException:
            if sequence.row >= 0:
                self.put_out(sequence, PreemptionMode.RECOMPUTE)
            raise
        pages = only_pages(sequence.pages)
        write_front(self._pool, pages[:num_fresh], kept, found)
        self._holdings.set_front(sequence, covered, kept, pages)
        return True

    # Out of the batch

    def take_admitted(self) -> list[Admitted]:
        """Who left the queue since the last call."""
        admitted, self._admission.admitted = self._admission.admitted, []
        return admitted

    def take_preempted(self) -> list[int]:
        """Who was put back into the queue since the last call, once for each time."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def scrub(self, sequence: Sequence) -> None:
        """See ``Holdings``."""
        self._holdings.scrub(sequence)

    def preempt(self, victim: Victim) -> None:
        """Put a running sequence back into the queue; it keeps its tokens, not its pages.

        Raises:
            InFlight: a step that has not landed computes it.
        """
        slot = victim.slot
        if self._queue.in_flight[slot]:
            raise InFlight
        sequence = self._queue[slot]
        self.preemptions += 1
        self._preempted.append(sequence.id)
        self.put_out(sequence, victim.mode)

    def put_out(self, sequence: Sequence, mode: PreemptionMode) -> None:
        """The same, counted as no preemption; no step computes it."""
        slot, view = sequence.slot, self._queue.view
        if mode is PreemptionMode.SWAP:
            self.outside.keep(sequence, int(view.num_computed[slot]))
        view.preemptions[slot] += 1
        self._admission.put_back(slot)

    def keep_tail(self, sequence: Sequence) -> None:
        """A sequence is about to end well; see ``Prefixes``."""
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
