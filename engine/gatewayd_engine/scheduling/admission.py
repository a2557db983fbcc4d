"""Admission of waiting sequences into the running batch, with their KV pages."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from gatewayd_engine.cache.offload import KvOffload
from gatewayd_engine.cache.prefix_cache import PrefixCache
from gatewayd_engine.kv.compacted_prefix import only_pages
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.process.log_context import about
from gatewayd_engine.process.messages import Admitted
from gatewayd_engine.process.plugin_faults import STRATEGY_ERROR, ProcessorUnavailable, RequestFault
from gatewayd_engine.sampling.guides.compiler import CompiledGrammar
from gatewayd_engine.scheduling.block_tables import BlockTables
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.caching import Match
from gatewayd_hooks.logits import RequestRefused

_MAX_DOUBLINGS = 16
"""Upper bound of the exponent; beyond any context, and larger ones would overflow."""


class _ComputedPrefix(NamedTuple):
    """The part of a sequence's prompt that is already computed when it is admitted."""

    shared: list[int]
    """Pages that hold it, in order."""
    computed: int
    """Tokens in them; the last page may hold another sequence's tokens after these."""
    continued: Match | None = None
    """The prefix cache match, if pages from a KV tier or swapped pages follow it."""


@dataclass(slots=True, eq=False, repr=False)
class Admission:
    """Assignment of batch rows and KV pages to waiting sequences.

    Attributes:
        admitted: sequences admitted since this list was last drained.
        quota_shortfall: pages needed by the last sequence that was refused because of its tenant's
            ceiling, or of other tenants' floors; else 0.
    """

    _queue: Queue
    _rows: RunningBatch
    _pages: Pages
    _block_tables: BlockTables
    _prefixes: PrefixCache
    _offload: KvOffload
    _strategies: Strategies
    _page_size: int = field(init=False)
    admitted: list[Admitted] = field(default_factory=list)
    quota_shortfall: int = 0

    def __post_init__(self) -> None:
        self._page_size = self._rows.page_size

    def try_admit(self, slot: int, grant: int) -> int:
        """Move a waiting sequence into the batch; returns the tokens it computes, 0 for no room.

        There is room when the pages for all its tokens, and some to grow into, are available in
        addition to those reserved for running sequences: half-admitted prompts would preempt one
        another, and so would sequences that fill their last page at the same time.
        """
        queue, view, size = self._queue, self._queue.view, self._page_size
        sequence = queue[slot]
        self.quota_shortfall = 0
        num_tokens = int(view.num_tokens[slot])
        reserved = self._reserve(sequence, num_tokens)
        prefix = self._fitting(sequence, self._find(sequence, num_tokens), reserved)
        if prefix is None:
            # With no running sequence, only pages retained for forks can be in the way.
            if not queue.running and self.release_inherited():
                return self.try_admit(slot, grant)
            if self.quota_shortfall and self._release_own_inherited(slot):
                return self.try_admit(slot, grant)
            return 0
        # Into the batch. Whatever is raised from here on returns the sequence to the queue.
        queue.num_reserved[slot] = reserved
        if sequence.swapped is None:
            # Recomputed tokens are prefill; a sequence restored from swap goes on decoding.
            sequence.decodes_from, sequence.compression_state = num_tokens, None
        self._rows.add(sequence, num_tokens)
        queue.start_running(slot)
        queue.row[slot] = sequence.row
        try:
            # By contract an admitted sequence is in `view.running` already.
            self._strategies.plan.dequeue(slot)
            computed = prefix.computed
            with about(sequence.names):
                self._assign_pages(sequence, prefix.shared, computed)
            if prefix.continued is not None:
                computed = self._restore(sequence, prefix.continued, num_tokens)
            # A chunk never crosses the end of a prompt that may be compacted there.
            exact = sequence.exact_len(num_tokens)
            count = min(grant, (exact if computed < exact else num_tokens) - computed)
            while len(sequence.pages) * size < computed + count:
                self._append_page(sequence)
        except BaseException:
            self.return_to_queue(slot)
            raise
        self._prefixes.discard_lookup(sequence)
        self._record_admission(sequence, computed, prefix.shared)
        return count

    def _find(self, sequence: Sequence, num_tokens: int) -> _ComputedPrefix:
        """Find the computed prefix of a waiting sequence."""
        if sequence.inherited:
            # The last prompt token is computed again, because its logits are needed.
            return _ComputedPrefix(sequence.inherited, sequence.prompt_len - 1)
        match = self._prefixes.match(sequence, num_tokens)
        if self._offload.has_more(sequence, match, num_tokens):
            # Tiers and swap hold whole pages: they replace a partial page at the end of the match.
            full = match.num_tokens // self._page_size
            return _ComputedPrefix(list(match.pages)[:full], full * self._page_size, match)
        return _ComputedPrefix(list(match.pages), match.num_tokens)

    def _reserve(self, sequence: Sequence, num_tokens: int) -> int:
        """Return pages for all tokens plus room to grow, which doubles with each preemption."""
        size = self._page_size
        doubled = 1 << min(sequence.preemptions, _MAX_DOUBLINGS)
        return min(-(-num_tokens // size) + doubled, -(-sequence.limit // size))

    def _fitting(
        self, sequence: Sequence, prefix: _ComputedPrefix, reserved: int
    ) -> _ComputedPrefix | None:
        """Return as much of a computed prefix as there is room for; None if there is no room."""
        shared, computed, continued = prefix
        if self._fits(sequence, shared, computed, reserved):
            return prefix
        part = computed % self._page_size
        if not part or sequence.inherited:
            return None
        # A shared partial page is held until it is copied: there may be room without it.
        shared, computed = shared[:-1], computed - part
        if self._fits(sequence, shared, computed, reserved):
            return _ComputedPrefix(shared, computed, continued)
        return None

    def _fits(self, sequence: Sequence, shared: list[int], computed: int, reserved: int) -> bool:
        """Whether the pages that a sequence needs in addition to shared ones are available."""
        pages = self._pages
        # Cached pages count as available until a sequence shares them.
        revived = sum(not pages.is_referenced(page) for page in shared)
        # A partially computed page is copied before it is written, unless it is exclusively owned.
        copies = computed < len(shared) * self._page_size and (
            not sequence.inherited or pages.is_shared(shared[-1]) or pages.is_known(shared[-1])
        )
        needed = reserved - len(shared) + copies + revived
        swapped = sequence.swapped
        if swapped is not None and swapped.front is not None:
            # `reserved` counts pages by tokens; a compacted prefix takes fewer.
            needed -= swapped.front.num_absent(self._page_size)
        is_there = needed <= pages.num_available - self.reserved_pages()
        if pages.quotas is None:
            return is_there
        tenant = int(self._queue.view.tenant[sequence.slot])
        is_within = needed <= self.headroom(tenant)
        # Refused by its own ceiling, or by other tenants' floors although enough pages are free.
        over = pages.quotas.headroom(tenant)
        is_over = over is not None and needed > over - self.reserved_pages(tenant)
        self.quota_shortfall = needed if is_over or (is_there and not is_within) else 0
        return is_within

    def _assign_pages(self, sequence: Sequence, shared: list[int], computed: int) -> None:
        """Assign the shared computed pages to a sequence that has a batch row."""
        queue, slot, size = self._queue, sequence.slot, self._page_size
        num_tokens = int(queue.view.num_tokens[slot])
        try:
            self._strategies.processors.add_row(
                sequence.row,
                sequence.params,
                sequence.tokens[: sequence.prompt_len],
                sequence.tokens[sequence.prompt_len : num_tokens],
            )
        except (RequestRefused, ProcessorUnavailable) as error:
            code = "invalid_request" if isinstance(error, RequestRefused) else STRATEGY_ERROR
            raise RequestFault(slot, code, str(error)) from error
        if isinstance(sequence.grammar, CompiledGrammar):
            self._follow(sequence, sequence.grammar, num_tokens)
        is_fork = bool(sequence.inherited)
        if is_fork:
            # The references move from the waiting fork to its page list.
            sequence.inherited = []
            self._block_tables.forked.add(slot)
            self._block_tables.assign(sequence, shared)
        else:
            for page in shared:
                # One by one: if the strategy raises, the list has just the referenced pages.
                self._pages.share(page)
                self._block_tables.append(sequence, page)
            full = shared[: computed // size]
            self._prefixes.extend_retention(sequence, full)
            # A KV tier may have been added after these pages were cached.
            self._offload.record_cached(sequence, len(full), set(full))
        queue.num_published[slot] = computed // size
        queue.view.num_computed[slot] = computed
        is_own = is_fork and self._block_tables.is_own(sequence, computed)
        if computed < len(shared) * size and not is_own:
            # A cached page holds another sequence's tokens after the match, even if unreferenced.
            self._block_tables.copy(sequence, computed, self._allocate_page(sequence))

    def _follow(self, sequence: Sequence, compiled: CompiledGrammar, num_tokens: int) -> None:
        """Resume a sequence's grammar at its current output after it got a batch row."""
        output = sequence.tokens[sequence.prompt_len : num_tokens]
        fault = self._strategies.processors.start_grammar(sequence.row, compiled, output)
        if fault is not None:
            raise RequestFault(sequence.slot, *fault)

    def _restore(self, sequence: Sequence, match: Match, num_tokens: int) -> int:
        """Restore pages from KV tiers or swap after the shared ones; returns computed tokens."""
        computed = self._offload.restore(
            sequence, match, num_tokens, partial(self._append_page, sequence)
        )
        swapped = sequence.swapped
        if swapped is not None and swapped.front is not None:
            front = swapped.front
            self._block_tables.set_front(sequence, front.covered, front.kept, sequence.pages)
        self._queue.view.num_computed[sequence.slot] = computed
        return computed

    def _append_page(self, sequence: Sequence) -> None:
        self._block_tables.append(sequence, self._allocate_page(sequence))

    def _allocate_page(self, sequence: Sequence) -> int:
        return self._pages.allocate(int(self._queue.view.tenant[sequence.slot]))

    def release_inherited(self, tenant: int | None = None) -> bool:
        """Release the inherited pages of waiting forks, which then recompute their prompt.

        Only forks that hold pages no sequence outside their group shares are affected.

        Args:
            tenant: number of the tenant; None for all.

        Returns:
            Whether any page was freed.
        """
        pages, whose = self._pages, self._queue.view.tenant
        forks = [
            sequence
            for sequence in self._queue
            if sequence.inherited and tenant in (None, int(whose[sequence.slot]))
        ]
        held = Counter(page for sequence in forks for page in sequence.inherited)
        freed = {page for page, count in held.items() if count == pages.num_holders(page)}
        for sequence in forks:
            if not freed.isdisjoint(sequence.inherited):
                inherited, sequence.inherited = sequence.inherited, []
                pages.release(inherited[::-1])
        return bool(freed)

    def _release_own_inherited(self, slot: int) -> bool:
        """Release pages inherited by a tenant's forks, if none of its sequences is running."""
        view = self._queue.view
        tenant = view.tenant[slot]
        return not (view.tenant[view.running] == tenant).any() and self.release_inherited(
            int(tenant)
        )

    def headroom(self, tenant: int) -> int:
        """Return the pages available for another sequence of a tenant, within all quotas."""
        room = self._pages.available(tenant) - self.reserved_pages()
        quotas = self._pages.quotas
        own = None if quotas is None else quotas.headroom(tenant)
        return room if own is None else min(room, own - self.reserved_pages(tenant))

    def reserved_pages(self, tenant: int | None = None) -> int:
        """Return the pages that running sequences may still claim before another is admitted.

        They are those that each was admitted with, and always one more than its tokens fill.

        Args:
            tenant: number of the tenant; None for all.
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
        reserved = np.maximum(grown, queue.num_reserved[running])
        return int(np.maximum(reserved - queue.num_pages[running], 0).sum())

    def _record_admission(self, sequence: Sequence, cached: int, shared: list[int]) -> None:
        self._prefixes.record_admission(sequence, cached, shared)
        if sequence.was_admitted:
            return
        sequence.was_admitted = True
        waited = time.monotonic() - sequence.submitted
        sequence.cached = min(cached, sequence.prompt_len)
        self.admitted.append(Admitted(sequence.id, sequence.cached, waited))

    # The rest must complete even when a strategy raises in the middle: the engine continues with
    # another strategy and the same accounts.

    def return_to_queue(self, slot: int) -> None:
        """Return a running sequence to the queue; it keeps its tokens, not its pages."""
        try:
            self.release_running(self._queue[slot], int(self._queue.view.num_tokens[slot]))
        finally:
            self._queue.requeue(slot)
            self._strategies.plan.enqueue(slot, self._queue.view, front=True)

    def release_running(self, sequence: Sequence, num_tokens: int) -> None:
        """Release the row and pages of a running sequence, which keeps ``num_tokens`` tokens."""
        # Incoming copies must not be written to pages that others have allocated.
        self._offload.wait()
        self._block_tables.forked.discard(sequence.slot)
        self._block_tables.clear_front(sequence)
        held, sequence.pages = only_pages(sequence.pages), []
        row = sequence.row
        self._rows.remove(sequence, num_tokens)
        try:
            self._strategies.processors.remove(row)
        finally:
            self._pages.release(held[::-1])
