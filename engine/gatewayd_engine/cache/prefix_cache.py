"""What the engine asks and tells the prefix cache."""

from __future__ import annotations

import collections.abc
import copy
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.cache.offload import KvOffload
from gatewayd_engine.cache.partial_pages import PartialPages
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.process.plugin_faults import blame
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.caching import Match, PageOrigin
from gatewayd_hooks.strategy import Kind

_Found = collections.abc.Sequence[int] | Match
_NOTHING = Match((), 0)


class PrefixCache:
    """Trails of sequences, and the pages that the cache knows for them.

    Attributes:
        queries, hits: prompt tokens that were looked up and found, totals since the start. A
            request counts once, however many answers it has and however often it is admitted.
    """

    def __init__(
        self,
        queue: Queue,
        pages: Pages,
        outside: KvOffload,
        strategies: Strategies,
        rows: RunningBatch,
    ) -> None:
        self._queue = queue
        self._pages = pages
        self._outside = outside
        self._strategies = strategies
        self._page_size = page_size = rows.page_size
        self._exact_until = rows.exact_until
        # By sequence id. The cache grows by ``publish`` alone, and a page that it lost since is
        # not known any more: until then what matched still does, and nothing more.
        self._matched: dict[int, Match] = {}
        self._tails = PartialPages()
        # What stands in pages that are known; of tenants nothing is kept.
        self._tokens = np.zeros((pages.num_pages, page_size), np.int32)
        self._is_kept = bytearray(pages.num_pages)
        pages.on_forget = self._tails.forget
        self.queries = 0
        self.hits = 0

    def begin(self, sequence: Sequence) -> None:
        """Let the prefix cache take note of a sequence's prompt."""
        begin = self._strategies.plan.begin
        sequence.trail = None
        if begin is not None:
            sequence.trail = begin(sequence.tokens[: sequence.prompt_len], sequence.salt)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let a sequence with the same prompt start from a copy of its parent's trail."""
        if parent.trail is None:
            self.begin(child)
            return
        with blame(Kind.PREFIX_CACHE):
            child.trail = copy.copy(parent.trail)

    def forget(self, sequence: Sequence) -> None:
        """The sequence waits no more, or begins anew."""
        self._matched.pop(sequence.id, None)
        self._outside.forget(sequence)

    def uncached(self, slot: int) -> int:
        """Tokens that a waiting sequence would compute if admitted now; see ``QueueView``."""
        sequence = self._queue[slot]
        num_tokens = int(self._queue.view.num_tokens[slot])
        if sequence.inherited:
            return num_tokens - (sequence.prompt_len - 1)
        return num_tokens - self.cached(sequence, num_tokens)

    def cached(self, sequence: Sequence, num_tokens: int) -> int:
        """Tokens of a waiting sequence that need not be computed, less than it has."""
        return self._outside.reach(sequence, self.match(sequence, num_tokens), num_tokens)

    def match(self, sequence: Sequence, num_tokens: int) -> Match:
        """The cached prefix of a waiting sequence, at least one token less than it has."""
        if not sequence.shares:
            return _NOTHING
        is_known = self._pages.is_known
        found = self._matched.get(sequence.id)
        if found is None or not all(map(is_known, found.pages)):
            found = self._find(sequence, sequence.whole(num_tokens) - 1)
            self._matched[sequence.id] = found
        return found

    def cached_of(self, tokens: NDArray[np.int32], salt: bytes) -> Match:
        """What is cached of a prompt that nobody has sent; nothing without a prefix cache."""
        plan = self._strategies.plan
        if plan.begin is None or plan.match is None:
            return _NOTHING
        with blame(Kind.PREFIX_CACHE):
            return self._shorten(plan.match(plan.begin(tokens, salt)), len(tokens))

    def _find(self, sequence: Sequence, most: int) -> Match:
        """What is cached of a sequence, at most so many tokens."""
        found, size = self._ask(sequence, most), self._page_size
        if not self._tails:
            return found
        full, part = divmod(found.num_tokens, size)
        pages = found.pages[:full]
        behind = sequence.tokens[full * size : min((full + 1) * size, most)]
        page, common = self._tails.find(pages[-1] if full else sequence.salt, behind)
        return Match([*pages, page], full * size + common) if common > part else found

    def _ask(self, sequence: Sequence, most: int) -> Match:
        """What the prefix cache has of a sequence, at most so many tokens."""
        match = self._strategies.plan.match
        if match is None:
            return _NOTHING
        with blame(Kind.PREFIX_CACHE):
            found = self._shorten(match(sequence.trail), most)
            if not all(map(self._pages.is_known, found.pages)):
                raise ValueError("matched a page that holds no prefix")
        return found

    def _shorten(self, found: _Found, most: int) -> Match:
        """At most so many tokens of what a prefix cache found; of full pages only full ones."""
        size = self._page_size
        if not isinstance(found, Match):
            pages = found[: most // size]
            return Match(pages, len(pages) * size)
        num_tokens = min(found.num_tokens, most)
        num_pages = -(-num_tokens // size)
        if num_tokens < 0 or num_pages > len(found.pages):
            raise ValueError(f"matched {found.num_tokens} tokens in {len(found.pages)} pages")
        return Match(found.pages[:num_pages], num_tokens)

    def count(self, sequence: Sequence, cached: int, pages: collections.abc.Sequence[int]) -> None:
        """Count an admission: so many tokens need not be computed, and these pages have them."""
        if sequence.was_counted:
            return
        sequence.was_counted = True
        self.queries += sequence.prompt_len
        self.hits += min(cached, sequence.prompt_len)
        if pages:
            self._pages.standing.found(pages)

    def publish(self, slots: NDArray[np.int32]) -> None:
        """Tell the prefix cache about pages that are filled by steps that have landed."""
        insert = self._strategies.plan.insert
        if insert is None:
            return
        queue, size = self._queue, self._page_size
        landed = queue.view.num_computed[slots] - queue.in_flight[slots]
        full = np.minimum(landed, self._exact_until[queue.row[slots]]) // size
        for i in np.flatnonzero(full > queue.num_published[slots]).tolist():
            slot, n = int(slots[i]), int(full[i])
            sequence = queue[slot]
            # Behind a front nothing is what others would compute.
            if sequence.trail is None or sequence.front is not None:
                continue
            queue.num_published[slot] = n
            pages = sequence.pages[:n]
            with blame(Kind.PREFIX_CACHE):
                taken = insert(
                    sequence.trail, sequence.tokens[: n * size], np.array(pages, np.int32)
                )
                known = set(taken)
                if not known.issubset(pages):
                    raise ValueError("took a page it was not offered")
            if known:
                self._pages.mark_known(taken)
                self._outside.note(sequence, n, known)
                self._matched.clear()
                self._tell_origins(sequence, n, known)

    def keep_tail(self, sequence: Sequence) -> None:
        """A running sequence is about to end: let others find the page it leaves filled in part."""
        if self._strategies.plan.insert is None or sequence.trail is None:
            return
        if sequence.front is not None:
            return
        view, slot, size = self._queue.view, sequence.slot, self._page_size
        landed = int(view.num_computed[slot] - self._queue.in_flight[slot])
        full, part = divmod(min(landed, int(view.num_tokens[slot])), size)
        if landed > self._exact_until[sequence.row]:
            return
        # Who shares it is about to fill it further.
        if not part or self._pages.is_shared(page := sequence.pages[full]):
            return
        before: int | bytes = sequence.salt
        if full:
            before = sequence.pages[full - 1]
            if not self._pages.is_known(before):
                # Another sequence was quicker: its pages are those that the cache maps to.
                found = self._ask(sequence, full * size)
                if found.num_tokens < full * size:
                    return
                before = found.pages[-1]
        tokens = sequence.tokens[full * size : full * size + part]
        known, common = self._tails.find(before, tokens)
        if common == part:
            self.retain(sequence, [known])
            return
        self._pages.mark_known([page])
        self._tails.add(before, tokens, page)
        self._matched.clear()
        self._keep_tokens(sequence, full, part, page)
        priority, seconds = sequence.retention
        parent = before if isinstance(before, int) else -1
        self._pages.learn(page, PageOrigin(parent, full, sequence.salt, priority, seconds))

    def _tell_origins(self, sequence: Sequence, end: int, known: set[int]) -> None:
        """Tell where pages stand that the cache now maps to, among the first ones of a sequence."""
        pages, depths = sequence.pages, []
        # They are among the last ones.
        for depth in range(end - 1, -1, -1):
            if pages[depth] in known:
                depths.append(depth)
                if len(depths) == len(known):
                    break
        before: collections.abc.Sequence[int] = pages
        if depths[-1] and not self._pages.is_known(pages[depths[-1] - 1]):
            # Another sequence was quicker: its pages are those that the cache maps to.
            before = self._ask(sequence, depths[-1] * self._page_size).pages
        priority, seconds = sequence.retention
        for depth in reversed(depths):
            parent = before[depth - 1] if 0 < depth <= len(before) else -1
            self._keep_tokens(sequence, depth, self._page_size, pages[depth])
            self._pages.learn(
                pages[depth],
                PageOrigin(parent, depth, sequence.salt, priority, seconds),
            )

    def _keep_tokens(self, sequence: Sequence, depth: int, count: int, page: int) -> None:
        """For who browses: what a tenant sends is nobody's business."""
        is_kept = self._is_kept[page] = not sequence.tenant
        if is_kept:
            begin = depth * self._page_size
            self._tokens[page, :count] = sequence.tokens[begin : begin + count]

    def filled(self, page: int) -> int:
        """Tokens of a known page that others can share."""
        size = self._tails.size(page)
        return self._page_size if size is None else size

    def tokens_in(self, page: int) -> bytes:
        """Ids that stand in a known page, int32; empty where they are not kept."""
        return self._tokens[page, : self.filled(page)].tobytes() if self._is_kept[page] else b""

    def retain(self, sequence: Sequence, shared: list[int]) -> None:
        """A sequence shares pages, and may want them kept longer than others do."""
        priority, seconds = sequence.retention
        for page in shared:
            origin = self._pages.origin(page)
            if origin is None or (priority <= origin.priority and seconds <= origin.seconds):
                continue
            more = replace(
                origin,
                priority=max(priority, origin.priority),
                seconds=max(seconds, origin.seconds),
            )
            self._pages.learn(page, more)

    def evict(self, pages: list[int]) -> None:
        """Give up those of some pages that are cached; tiers do not get them."""
        for page in pages:
            if self._pages.is_known(page) and not self._pages.is_held(page):
                self._outside.dropped(page)
                self._pages.drop(page)
        self._matched.clear()

    def rebuild(self) -> None:
        """Another prefix cache, which knows nothing yet: let it begin with who lives."""
        self._matched.clear()
        self._tails.clear()
        self._queue.num_published[:] = 0
        for sequence in self._queue:
            self.begin(sequence)
