"""Admission: who may leave the queue, and with which pages."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import NamedTuple

import numpy as np

from gatewayd_engine.cache.offload import KvOffload
from gatewayd_engine.cache.prefix_cache import PrefixCache
from gatewayd_engine.kv.compacted_prefix import only_pages
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.process.log_context import about
from gatewayd_engine.process.messages import Admitted
from gatewayd_engine.process.plugin_faults import STRATEGY_ERROR, OutOfService, RequestFault
from gatewayd_engine.sampling.guides.compiler import CompiledGrammar
from gatewayd_engine.scheduling.block_tables import BlockTables
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.caching import Match
from gatewayd_hooks.logits import RequestRefused

_MAX_DOUBLINGS = 16
"""Beyond any context; more would only overflow."""


class _Beginning(NamedTuple):
    """What others have computed of a sequence that is to be admitted."""

    shared: list[int]
    """Pages that hold it, in order."""
    computed: int
    """Tokens in them; the last page may hold another's behind them."""
    continued: Match | None = None
    """What was cached, if pages come back from outside behind it."""


class Admission:
    """Gives waiting sequences rows and pages.

    Attributes:
        admitted: who left the queue since it was last emptied.
        short: pages that the last one needed who got none because of its tenant's ceiling, or of
            others' floors; else 0.
    """

    def __init__(
        self,
        queue: Queue,
        rows: RunningBatch,
        pages: Pages,
        holdings: BlockTables,
        prefixes: PrefixCache,
        outside: KvOffload,
        strategies: Strategies,
    ) -> None:
        self._queue = queue
        self._rows = rows
        self._pages = pages
        self._holdings = holdings
        self._prefixes = prefixes
        self._outside = outside
        self._strategies = strategies
        self._page_size = rows.page_size
        self.admitted: list[Admitted] = []
        self.short = 0

    def admit(self, slot: int, grant: int) -> int:
        """Move a waiting sequence into the batch; returns the tokens it computes, 0 for no room.

        There is room when the pages for all its tokens, and some to grow into, are to be had
        beside those that were promised to the running ones: half-admitted prompts would preempt
        one another, and so would those that fill their last page together.
        """
        queue, view, size = self._queue, self._queue.view, self._page_size
        sequence = queue[slot]
        self.short = 0
        num_tokens = int(view.num_tokens[slot])
        reserved = self._reserve(sequence, num_tokens)
        beginning = self._fitting(sequence, self._find(sequence, num_tokens), reserved)
        if beginning is None:
            # With nobody running, only pages kept for forks can be in the way.
            if not queue.running and self.drop_inherited():
                return self.admit(slot, grant)
            if self.short and self._may_drop_own(slot):
                return self.admit(slot, grant)
            return 0
        queue.num_reserved[slot] = reserved
        if sequence.kept is None:
            sequence.decodes_from, sequence.known = num_tokens, None
        self._rows.take(sequence, num_tokens)
        queue.start_running(slot)
        queue.row[slot] = sequence.row
        try:
            self._strategies.plan.dequeue(slot)
            computed = beginning.computed
            with about(sequence.names):
                self._seat(sequence, beginning.shared, computed)
            if beginning.continued is not None:
                computed = self._bring(sequence, beginning.continued, num_tokens)
            whole = sequence.whole(num_tokens)
            count = min(grant, (whole if computed < whole else num_tokens) - computed)
            while len(sequence.pages) * size < computed + count:
                self._take(sequence)
        except BaseException:
            self.put_back(slot)
            raise
        self._prefixes.forget(sequence)
        self._note_admission(sequence, computed, beginning.shared)
        return count

    def _find(self, sequence: Sequence, num_tokens: int) -> _Beginning:
        """What a waiting sequence need not compute."""
        if sequence.inherited:
            return _Beginning(sequence.inherited, sequence.prompt_len - 1)
        match = self._prefixes.match(sequence, num_tokens)
        if self._outside.has_more(sequence, match, num_tokens):
            full = match.num_tokens // self._page_size
            return _Beginning(list(match.pages)[:full], full * self._page_size, match)
        return _Beginning(list(match.pages), match.num_tokens)

    def _reserve(self, sequence: Sequence, num_tokens: int) -> int:
        """Pages for all tokens of a sequence, and to grow into: twice as many each preemption."""
        size = self._page_size
        doubled = 1 << min(sequence.preemptions, _MAX_DOUBLINGS)
        return min(-(-num_tokens // size) + doubled, -(-sequence.limit // size))

    def _fitting(
        self, sequence: Sequence, beginning: _Beginning, reserved: int
    ) -> _Beginning | None:
        """As much of a beginning as there is room for; None if there is none."""
        shared, computed, continued = beginning
        if self._fits(sequence, shared, computed, reserved):
            return beginning
        part = computed % self._page_size
        if not part or sequence.inherited:
            return None
        # A page is kept until it is copied: there may be room without it.
        shared, computed = shared[:-1], computed - part
        if self._fits(sequence, shared, computed, reserved):
            return _Beginning(shared, computed, continued)
        return None

    def _fits(self, sequence: Sequence, shared: list[int], computed: int, reserved: int) -> bool:
        """Whether the pages that a sequence needs beside shared ones are to be had."""
        pages = self._pages
        revived = sum(not pages.is_held(page) for page in shared)
        copies = computed < len(shared) * self._page_size and (
            not sequence.inherited or pages.is_shared(shared[-1]) or pages.is_known(shared[-1])
        )
        needed = reserved - len(shared) + copies + revived
        kept = sequence.kept
        if kept is not None and kept.front is not None:
            needed -= kept.front.num_absent(self._page_size)
        is_there = needed <= pages.num_available - self.promised()
        if pages.quotas is None:
            return is_there
        tenant = int(self._queue.view.tenant[sequence.slot])
        is_within = needed <= self.room(tenant)
        # Its ceiling keeps it, or a floor of others where there are pages enough.
        over = pages.quotas.room(tenant)
        is_over = over is not None and needed > over - self.promised(tenant)
        self.short = needed if is_over or (is_there and not is_within) else 0
        return is_within

    def _seat(self, sequence: Sequence, shared: list[int], computed: int) -> None:
        """Give a sequence that has got a row the pages that others have computed."""
        queue, slot, size = self._queue, sequence.slot, self._page_size
        num_tokens = int(queue.view.num_tokens[slot])
        try:
            self._strategies.processors.add_row(
                sequence.row,
                sequence.params,
                sequence.tokens[: sequence.prompt_len],
                sequence.tokens[sequence.prompt_len : num_tokens],
            )
        except (RequestRefused, OutOfService) as error:
            code = "invalid_request" if isinstance(error, RequestRefused) else STRATEGY_ERROR
            raise RequestFault(slot, code, str(error)) from error
        if isinstance(sequence.grammar, CompiledGrammar):
            self._follow(sequence, sequence.grammar, num_tokens)
        is_fork = bool(sequence.inherited)
        if is_fork:
            sequence.inherited = []
            self._holdings.forked.add(slot)
            self._holdings.begin(sequence, shared)
        else:
            for page in shared:
                self._pages.share(page)
                self._holdings.append(sequence, page)
            full = shared[: computed // size]
            self._prefixes.retain(sequence, full)
            # A tier may have come after they were cached.
            self._outside.note(sequence, len(full), set(full))
        queue.num_published[slot] = computed // size
        queue.view.num_computed[slot] = computed
        is_own = is_fork and self._holdings.is_own(sequence, computed)
        if computed < len(shared) * size and not is_own:
            # A cached page holds another's tokens behind the match, also if nobody holds it now.
            self._holdings.copy(sequence, computed, self._taken(sequence))

    def _follow(self, sequence: Sequence, compiled: CompiledGrammar, num_tokens: int) -> None:
        """Let a sequence that has got a row go on by its grammar where it was."""
        output = sequence.tokens[sequence.prompt_len : num_tokens]
        fault = self._strategies.processors.start_grammar(sequence.row, compiled, output)
        if fault is not None:
            raise RequestFault(sequence.slot, *fault)

    def _bring(self, sequence: Sequence, match: Match, num_tokens: int) -> int:
        """Let pages come back behind those that a sequence has; returns its computed tokens."""
        computed = self._outside.bring(sequence, match, num_tokens, partial(self._take, sequence))
        kept = sequence.kept
        if kept is not None and kept.front is not None:
            front = kept.front
            self._holdings.set_front(sequence, front.covered, front.kept, sequence.pages)
        self._queue.view.num_computed[sequence.slot] = computed
        return computed

    def _take(self, sequence: Sequence) -> None:
        self._holdings.append(sequence, self._taken(sequence))

    def _taken(self, sequence: Sequence) -> int:
        return self._pages.take(int(self._queue.view.tenant[sequence.slot]))

    def drop_inherited(self, tenant: int | None = None) -> bool:
        """Let waiting forks compute their prompt again, where nobody else holds its pages.

        Args:
            tenant: whose; None for all.

        Returns:
            Whether any page came free.
        """
        pages, whose = self._pages, self._queue.view.tenant
        heirs = [
            sequence
            for sequence in self._queue
            if sequence.inherited and tenant in (None, int(whose[sequence.slot]))
        ]
        held = Counter(page for sequence in heirs for page in sequence.inherited)
        is_spare = {page for page, count in held.items() if count == pages.num_holders(page)}
        for sequence in heirs:
            if not is_spare.isdisjoint(sequence.inherited):
                inherited, sequence.inherited = sequence.inherited, []
                pages.give_back(inherited[::-1])
        return bool(is_spare)

    def _may_drop_own(self, slot: int) -> bool:
        """Let go of what forks of a tenant keep, if none of its sequences runs."""
        view = self._queue.view
        tenant = view.tenant[slot]
        return not (view.tenant[view.running] == tenant).any() and self.drop_inherited(int(tenant))

    def room(self, tenant: int) -> int:
        """Pages for another sequence of a tenant, with its ceiling and others' floors."""
        room = self._pages.available(tenant) - self.promised()
        quotas = self._pages.quotas
        own = None if quotas is None else quotas.room(tenant)
        return room if own is None else min(room, own - self.promised(tenant))

    def promised(self, tenant: int | None = None) -> int:
        """Pages that running sequences may still take before another is admitted.

        They are those that each was admitted with, and always one more than its tokens fill.

        Args:
            tenant: whose; None for all.
        """
        queue, size = self._queue, self._page_size
        running = queue.view.running
        if tenant is not None:
            running = running[queue.view.tenant[running] == tenant]
        if not len(running):
            return 0
        grown = np.minimum(
            -(-queue.view.num_tokens[running] // size) + 1, -(-queue.limit[running] // size)
        )
        promised = np.maximum(grown, queue.num_reserved[running])
        return int(np.maximum(promised - queue.num_pages[running], 0).sum())

    def _note_admission(self, sequence: Sequence, cached: int, shared: list[int]) -> None:
        self._prefixes.count(sequence, cached, shared)
        if sequence.was_admitted:
            return
        sequence.was_admitted = True
        waited = time.monotonic() - sequence.submitted
        sequence.cached = min(cached, sequence.prompt_len)
        self.admitted.append(Admitted(sequence.id, sequence.cached, waited))

    # What follows must be whole even when a strategy raises in the middle: the engine goes on
    # with another strategy and the same accounts.

    def put_back(self, slot: int) -> None:
        """A running sequence waits again; it keeps its tokens, not its pages."""
        try:
            self.leave(self._queue[slot], int(self._queue.view.num_tokens[slot]))
        finally:
            self._queue.wait_again(slot)
            self._strategies.plan.enqueue(slot, self._queue.view, front=True)

    def leave(self, sequence: Sequence, num_tokens: int) -> None:
        """A running sequence gives back its row and its pages, and keeps so many tokens."""
        self._outside.settle()
        self._holdings.forked.discard(sequence.slot)
        self._holdings.drop_front(sequence)
        held, sequence.pages = only_pages(sequence.pages), []
        row = sequence.row
        self._rows.give_back(sequence, num_tokens)
        try:
            self._strategies.processors.remove(row)
        finally:
            self._pages.give_back(held[::-1])
