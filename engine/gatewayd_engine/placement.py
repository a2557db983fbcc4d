"""Finds rows and pages for what a plan grants: admission, growth, preemption, release."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.faults import RequestFault, blame
from gatewayd_engine.kv.pages import OutOfPages, Pages
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.messages import Admitted
from gatewayd_engine.queue import Queue
from gatewayd_engine.rows import Rows
from gatewayd_engine.sequence import Sequence
from gatewayd_engine.strategies import Strategies
from gatewayd_hooks.preemption import Victim
from gatewayd_hooks.scheduling import Plan
from gatewayd_hooks.strategy import Kind


class Placement:
    """Moves sequences between the queue and the batch.

    Attributes:
        admitted: who left the queue since it was last emptied.
        preemptions, prefix_queries, prefix_hits: totals since the start.
    """

    def __init__(
        self, queue: Queue, rows: Rows, pool: KvPool, pages: Pages, strategies: Strategies
    ) -> None:
        self._queue = queue
        self._rows = rows
        self._pool = pool
        self._pages = pages
        self._strategies = strategies
        self._page_size = pool.page_size
        self._forked: set[int] = set()
        self.admitted: list[Admitted] = []
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    # Into the queue

    def enqueue(self, sequence: Sequence, *, front: bool) -> None:
        """A new sequence waits."""
        slot = self._queue.add(sequence)
        try:
            self.begin_trail(sequence)
        finally:
            self._strategies.plan.enqueue(slot, self._queue.view, front=front)

    def begin_trail(self, sequence: Sequence) -> None:
        """Let the prefix cache take note of a sequence's prompt."""
        begin = self._strategies.plan.begin
        sequence.trail = None
        if begin is not None:
            sequence.trail = begin(sequence.tokens[: sequence.prompt_len], sequence.salt)

    def uncached(self, slot: int) -> int:
        """Tokens that a waiting sequence would compute if admitted now; see ``QueueView``."""
        sequence = self._queue[slot]
        num_tokens = int(self._queue.view.num_tokens[slot])
        if sequence.inherited:
            return num_tokens - (sequence.prompt_len - 1)
        return num_tokens - len(self._match(sequence, num_tokens)) * self._page_size

    def _match(self, sequence: Sequence, num_tokens: int) -> list[int]:
        """Cached pages of a waiting sequence that leave at least one token to compute."""
        match = self._strategies.plan.match
        if match is None or sequence.trail is None or sequence.params.prompt_logprobs is not None:
            return []
        with blame(Kind.PREFIX_CACHE):
            pages = list(match(sequence.trail)[: (num_tokens - 1) // self._page_size])
            if not all(self._pages.is_known(page) for page in pages):
                raise ValueError("matched a page that holds no prefix")
        return pages

    # Into the batch

    def take(self, plan: Plan) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Find pages for a checked plan.

        Returns:
            Slots to compute and tokens for each: what the plan grants, less those who were
            preempted for others and those waiting ones for whom there is no room.
        """
        is_running = self._queue.row[plan.slots] >= 0
        slots, tokens = plan.slots[is_running], plan.tokens[is_running]
        preempted = self._grow(slots, tokens)
        if preempted:
            keep = [slot not in preempted for slot in slots.tolist()]
            slots, tokens = slots[keep], tokens[keep]
            # Whoever waits is behind those who were just put out.
            return slots, tokens
        waiting = ~is_running
        if not waiting.any():
            return slots, tokens
        admitted: list[tuple[int, int]] = []
        for slot, grant in zip(
            plan.slots[waiting].tolist(), plan.tokens[waiting].tolist(), strict=True
        ):
            count = self._admit(slot, grant)
            if not count:
                break
            admitted.append((slot, count))
        more = np.array(admitted, np.int32).reshape(-1, 2)
        return np.concatenate([slots, more[:, 0]]), np.concatenate([tokens, more[:, 1]])

    def _grow(self, slots: NDArray[np.int32], tokens: NDArray[np.int32]) -> set[int]:
        """Give running sequences the pages that their grants write to."""
        queue, size = self._queue, self._page_size
        computed = queue.view.num_computed[slots]
        needed = -(-(computed + tokens) // size)
        grows = needed > queue.num_pages[slots]
        if self._forked:
            grows |= np.isin(slots, np.fromiter(self._forked, np.int32))
        preempted: set[int] = set()
        for i in np.flatnonzero(grows).tolist():
            slot = int(slots[i])
            if slot in preempted:
                continue
            sequence = queue[slot]
            if slot in self._forked:
                self._copy_shared(sequence, int(computed[i]), preempted)
            while slot not in preempted and len(sequence.pages) < needed[i]:
                self._hold(sequence, self._take(preempted, slot))
        return preempted

    def _hold(self, sequence: Sequence, page: int | None) -> None:
        if page is None:
            return
        sequence.pages.append(page)
        n = self._queue.num_pages[sequence.slot] = len(sequence.pages)
        self._rows.block_table[sequence.row, n - 1] = page

    def _take(self, preempted: set[int], slot: int) -> int | None:
        """A page for a running sequence, whoever has to give way; None if it is itself."""
        while True:
            try:
                return self._pages.take()
            except OutOfPages:
                victim = self._victim()
                self.preempt(victim)
                preempted.add(victim)
                if victim == slot:
                    return None

    def _victim(self) -> int:
        candidates = self._queue.view.running
        with blame(Kind.PREEMPTION):
            victim: Victim = self._strategies.plan.preempt(self._queue.view, candidates)
            if victim.slot not in self._queue.running:
                raise ValueError(f"chose slot {victim.slot}, which does not run")
            return int(victim.slot)

    def _copy_shared(self, sequence: Sequence, position: int, preempted: set[int]) -> None:
        """Copy on write: the page of ``position`` must be the sequence's own."""
        index, slot = position // self._page_size, sequence.slot
        if index >= len(sequence.pages) or not self._pages.is_shared(sequence.pages[index]):
            self._forked.discard(slot)
            return
        copy = self._take(preempted, slot)
        if copy is None:
            return
        shared = sequence.pages[index]
        self._pool.copy_page(shared, copy)
        sequence.pages[index] = copy
        self._rows.block_table[sequence.row, index] = copy
        self._forked.discard(slot)
        self._pages.give_back([shared])

    def _admit(self, slot: int, grant: int) -> int:
        """Move a waiting sequence into the batch; returns the tokens it computes, 0 for no room.

        There is room when the pages for all its tokens are to be had beside those that the
        running ones still need for theirs: half-admitted prompts would preempt one another.
        """
        queue, view, size = self._queue, self._queue.view, self._page_size
        sequence = queue[slot]
        num_tokens = int(view.num_tokens[slot])
        if sequence.inherited:
            shared, computed = sequence.inherited, sequence.prompt_len - 1
        else:
            shared = self._match(sequence, num_tokens)
            computed = len(shared) * size
        pages = self._pages
        revived = sum(not pages.is_held(page) for page in shared)
        copies = len(shared) > computed // size and pages.is_shared(shared[-1])
        needed = -(-num_tokens // size) - len(shared) + copies
        if needed > pages.num_available - revived - self._promised():
            # With nobody running, only pages kept for forks can be in the way.
            if not queue.running and self._drop_inherited():
                return self._admit(slot, grant)
            return 0
        self._strategies.plan.dequeue(slot)
        count = min(grant, num_tokens - computed)
        self._rows.take(sequence, num_tokens)
        queue.start_running(slot)
        queue.row[slot] = sequence.row
        try:
            self._seat(sequence, shared, computed, computed + count)
        except BaseException:
            self._put_back(slot)
            raise
        self._note_admission(sequence, computed)
        return count

    def _seat(self, sequence: Sequence, shared: list[int], computed: int, reach: int) -> None:
        """Give a sequence that has got a row its pages, up to ``reach`` tokens."""
        queue, slot, size = self._queue, sequence.slot, self._page_size
        num_tokens = int(queue.view.num_tokens[slot])
        try:
            self._strategies.processors.admit(
                sequence.row,
                sequence.params,
                sequence.tokens[: sequence.prompt_len],
                sequence.tokens[sequence.prompt_len : num_tokens],
            )
        except Exception as error:
            # Most likely it does not like the request's parameters: they are the client's.
            sentence = f"a logits processor refused the request: {error}"
            raise RequestFault(slot, "strategy_error", sentence) from error
        is_fork = bool(sequence.inherited)
        if is_fork:
            sequence.pages, sequence.inherited = sequence.inherited, []
            self._forked.add(slot)
        else:
            for page in shared:
                self._pages.share(page)
                sequence.pages.append(page)
        held = len(sequence.pages)
        self._rows.block_table[sequence.row, :held] = sequence.pages
        queue.num_pages[slot] = held
        queue.num_published[slot] = computed // size
        queue.view.num_computed[slot] = computed
        if is_fork:
            self._copy_shared(sequence, computed, set())
        while len(sequence.pages) * size < reach:
            self._hold(sequence, self._pages.take())

    def _drop_inherited(self) -> bool:
        """Let waiting forks compute their prompt again; whether there were any."""
        heirs = [sequence for sequence in self._queue if sequence.inherited]
        for sequence in heirs:
            self._pages.give_back(sequence.inherited[::-1])
            sequence.inherited = []
        return bool(heirs)

    def _promised(self) -> int:
        """Pages that running sequences will still take for the tokens they already have."""
        running = self._queue.view.running
        if not len(running):
            return 0
        whole = -(-self._queue.view.num_tokens[running] // self._page_size)
        return int(np.maximum(whole - self._queue.num_pages[running], 0).sum())

    def _note_admission(self, sequence: Sequence, cached: int) -> None:
        self.prefix_queries += sequence.prompt_len
        self.prefix_hits += min(cached, sequence.prompt_len)
        if sequence.was_admitted:
            return
        sequence.was_admitted = True
        waited = time.monotonic() - sequence.submitted
        cached = min(cached, sequence.prompt_len)
        self.admitted.append(Admitted(sequence.id, cached, waited))

    # Out of the batch

    def preempt(self, slot: int) -> None:
        """Put a running sequence back into the queue; it keeps its tokens, not its pages."""
        self.preemptions += 1
        self._put_back(slot)

    # What follows must be whole even when a strategy raises in the middle: the engine goes on
    # with another strategy and the same accounts.

    def _put_back(self, slot: int) -> None:
        try:
            self._leave(self._queue[slot], int(self._queue.view.num_tokens[slot]))
        finally:
            self._queue.wait_again(slot)
            self._strategies.plan.enqueue(slot, self._queue.view, front=True)

    def release(self, sequence: Sequence) -> None:
        """A sequence has ended, running or waiting: everything it holds is given back."""
        inherited, sequence.inherited = sequence.inherited, []
        try:
            if sequence.row >= 0:
                self._leave(sequence, 0)
            else:
                self._strategies.plan.dequeue(sequence.slot)
        finally:
            self._queue.remove(sequence)
            self._pages.give_back(inherited[::-1])

    def _leave(self, sequence: Sequence, num_tokens: int) -> None:
        self._forked.discard(sequence.slot)
        held, sequence.pages = sequence.pages, []
        row = sequence.row
        self._rows.give_back(sequence, num_tokens)
        try:
            self._strategies.processors.remove(row)
        finally:
            self._pages.give_back(held[::-1])

    def scrub(self, sequence: Sequence) -> None:
        """Blank the pages only this sequence has written: it may have put NaN there.

        Pages are read beyond their owner's tokens under a mask, and a masked NaN is still one.
        """
        for page in sequence.pages:
            if not self._pages.is_shared(page) and not self._pages.is_known(page):
                self._pool.data[page].zero_()

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Queue a sequence that shares the parent's computed prompt.

        It computes the last prompt token again, for the logits; the page of that token is
        copied by whoever writes to it first.
        """
        num_shared = -(-(parent.prompt_len - 1) // self._page_size)
        child.inherited = parent.pages[:num_shared]
        for page in child.inherited:
            self._pages.share(page)
        self._forked.add(parent.slot)
        self.enqueue(child, front=True)

    def publish(self, slots: NDArray[np.int32]) -> None:
        """Tell the prefix cache about pages that the last step filled."""
        insert = self._strategies.plan.insert
        if insert is None:
            return
        queue, size = self._queue, self._page_size
        full = queue.view.num_computed[slots] // size
        for i in np.flatnonzero(full > queue.num_published[slots]).tolist():
            slot, n = int(slots[i]), int(full[i])
            sequence = queue[slot]
            if sequence.trail is None:
                continue
            queue.num_published[slot] = n
            pages = np.array(sequence.pages[:n], np.int32)
            with blame(Kind.PREFIX_CACHE):
                known = insert(sequence.trail, sequence.tokens[: n * size], pages)
                if not set(known) <= set(sequence.pages[:n]):
                    raise ValueError("took a page it was not offered")
            self._pages.mark_known(known)

    def rebuild(self, kind: Kind) -> None:
        """Another strategy fills a slot: let it learn what the engine knows."""
        plan = self._strategies.plan
        match kind:
            case Kind.SCHEDULER:
                arrival = self._queue.view.arrival
                for slot in sorted(self._queue.waiting, key=lambda slot: float(arrival[slot])):
                    plan.enqueue(slot, self._queue.view, front=False)
            case Kind.EVICTION:
                self._pages.replace_eviction(self._strategies.eviction)
            case Kind.PREFIX_CACHE:
                self._strategies.renew_eviction()
                self._pages.replace_prefix_cache(plan.forget, self._strategies.eviction)
                self._queue.num_published[:] = 0
                for sequence in self._queue:
                    self.begin_trail(sequence)
