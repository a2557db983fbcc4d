"""Prefix cache: page lookup and publication; its index is a plugin (prefix_hash, prefix_radix)."""

from __future__ import annotations

import collections.abc
import copy
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.cache.following_pages import FollowingPages
from gatewayd_engine.cache.offload import KvOffload
from gatewayd_engine.kv.page_allocator import PageInvariantError, Pages
from gatewayd_engine.process.plugin_faults import attribute_faults
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.caching import Match, PageOrigin
from gatewayd_hooks.strategy import Kind

_Found = collections.abc.Sequence[int] | Match
_NOTHING = Match((), 0)
_LEAST_SHARE = 4
"""A first page is copied for a quarter of its tokens: unrelated prompts begin alike, too."""


class PrefixCache:
    """Lookup state of sequences, and the cached pages found for them.

    Attributes:
        queries, hits: prompt tokens looked up and found, totals since the start. A request counts
            once, however many sequences it has and however often they are admitted.
    """

    def __init__(
        self,
        queue: Queue,
        pages: Pages,
        offload: KvOffload,
        strategies: Strategies,
        rows: RunningBatch,
    ) -> None:
        self._queue = queue
        self._pages = pages
        self._offload = offload
        self._strategies = strategies
        self._page_size = page_size = rows.page_size
        self._exact_until = rows.exact_until
        # By sequence id. The cache grows only by ``publish``, and evicted pages are no longer
        # known: until then a match stays valid, and cannot become longer.
        self._matched: dict[int, Match] = {}
        self._following = FollowingPages()
        # Tokens in cached pages, for the operator view; those of tenants are not recorded.
        self._tokens = np.zeros((pages.num_pages, page_size), np.int32)
        self._is_recorded = bytearray(pages.num_pages)
        pages.on_uncached = self._following.discard
        self.queries = 0
        self.hits = 0

    def start_sequence(self, sequence: Sequence) -> None:
        """Start the prefix cache lookup of a sequence's prompt."""
        begin = self._strategies.plan.begin
        sequence.trail = None
        if begin is not None:
            sequence.trail = begin(sequence.tokens[: sequence.prompt_len], sequence.salt)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Start a sequence with the same prompt from a copy of its parent's lookup state."""
        if parent.trail is None:
            self.start_sequence(child)
            return
        with attribute_faults(Kind.PREFIX_CACHE):
            child.trail = copy.copy(parent.trail)

    def discard_lookup(self, sequence: Sequence) -> None:
        """Discard lookup results of a sequence that no longer waits, or restarts."""
        self._matched.pop(sequence.id, None)
        self._offload.discard(sequence)

    def uncached(self, slot: int) -> int:
        """Return the tokens a waiting sequence would compute if admitted; see ``QueueView``."""
        sequence = self._queue[slot]
        num_tokens = int(self._queue.view.num_tokens[slot])
        if sequence.inherited:
            return num_tokens - (sequence.prompt_len - 1)
        return num_tokens - self.cached(sequence, num_tokens)

    def cached(self, sequence: Sequence, num_tokens: int) -> int:
        """Return the tokens of a waiting sequence that need not be computed, not all of them."""
        return self._offload.num_cached_tokens(
            sequence, self.match(sequence, num_tokens), num_tokens
        )

    def match(self, sequence: Sequence, num_tokens: int) -> Match:
        """Return the cached prefix of a waiting sequence, at least one token less than its own."""
        if not sequence.may_share:
            return _NOTHING
        is_known = self._pages.is_known
        found = self._matched.get(sequence.id)
        if found is None or not all(map(is_known, found.pages)):
            found = self._find(sequence, sequence.exact_len(num_tokens) - 1)
            self._matched[sequence.id] = found
        return found

    def match_prompt(self, tokens: NDArray[np.int32], salt: bytes) -> Match:
        """Return the cached prefix of a prompt without a request; empty without a cache."""
        plan = self._strategies.plan
        if plan.begin is None or plan.match is None:
            return _NOTHING
        with attribute_faults(Kind.PREFIX_CACHE):
            return self._shorten(plan.match(plan.begin(tokens, salt)), len(tokens))

    def _find(self, sequence: Sequence, most: int) -> Match:
        """Find the cached prefix of a sequence, up to ``most`` tokens and within pages."""
        found, size = self._match_cached(sequence, most), self._page_size
        if not self._following:
            return found
        full, part = divmod(found.num_tokens, size)
        pages = found.pages[:full]
        behind = sequence.tokens[full * size : min((full + 1) * size, most)]
        page, common = self._following.find(pages[-1] if full else sequence.salt, behind)
        # The strategy's own match may end within the page as well.
        least = 1 if full else max(1, size // _LEAST_SHARE)
        return Match([*pages, page], full * size + common) if common - part >= least else found

    def _match_cached(self, sequence: Sequence, most: int) -> Match:
        """Match a sequence in the prefix cache, up to ``most`` tokens."""
        match = self._strategies.plan.match
        if match is None:
            return _NOTHING
        with attribute_faults(Kind.PREFIX_CACHE):
            found = self._shorten(match(sequence.trail), most)
            if not all(map(self._pages.is_known, found.pages)):
                raise ValueError("matched a page that is not cached")
        return found

    def _shorten(self, found: _Found, most: int) -> Match:
        """Truncate a match to ``most`` tokens; one of full pages to full pages."""
        size = self._page_size
        if not isinstance(found, Match):
            pages = found[: most // size]
            return Match(pages, len(pages) * size)
        num_tokens = min(found.num_tokens, most)
        num_pages = -(-num_tokens // size)
        if num_tokens < 0 or num_pages > len(found.pages):
            raise ValueError(f"matched {found.num_tokens} tokens in {len(found.pages)} pages")
        return Match(found.pages[:num_pages], num_tokens)

    def record_admission(
        self, sequence: Sequence, cached: int, pages: collections.abc.Sequence[int]
    ) -> None:
        """Count cache queries and hits of an admitted sequence, given its computed prefix."""
        if sequence.was_counted:
            return
        sequence.was_counted = True
        self.queries += sequence.prompt_len
        self.hits += min(cached, sequence.prompt_len)
        if pages:
            self._pages.tree.record_hits(pages)

    def publish(self, slots: NDArray[np.int32]) -> None:
        """Insert pages filled by completed steps into the prefix cache."""
        insert = self._strategies.plan.insert
        if insert is None:
            return
        queue, size = self._queue, self._page_size
        # Pages of a step in flight are not written yet.
        completed = queue.view.num_computed[slots] - queue.in_flight[slots]
        full = np.minimum(completed, self._exact_until[queue.row[slots]]) // size
        for i in (full > queue.num_published[slots]).nonzero()[0].tolist():
            slot, n = int(slots[i]), int(full[i])
            sequence = queue[slot]
            # After a compacted prefix, keys and values differ from what other sequences compute.
            if sequence.trail is None or sequence.front is not None:
                continue
            queue.num_published[slot] = n
            pages = sequence.pages[:n]
            with attribute_faults(Kind.PREFIX_CACHE):
                inserted = insert(
                    sequence.trail, sequence.tokens[: n * size], np.array(pages, np.int32)
                )
                known = set(inserted)
                if not known.issubset(pages):
                    raise ValueError("inserted a page that was not offered")
            if known:
                self._pages.mark_known(inserted)
                self._offload.record_cached(sequence, n, known)
                # Waiting sequences may match more than before.
                self._matched.clear()
                self._record_origins(sequence, n, known)

    def cache_tail(self, sequence: Sequence) -> None:
        """Cache the partially filled last page of a running sequence that is about to end."""
        if self._strategies.plan.insert is None or sequence.trail is None:
            return
        if sequence.front is not None:
            return
        view, slot, size = self._queue.view, sequence.slot, self._page_size
        completed = int(view.num_computed[slot] - self._queue.in_flight[slot])
        full, part = divmod(min(completed, int(view.num_tokens[slot])), size)
        if completed > self._exact_until[sequence.row]:
            return
        # A sequence that shares the page is about to fill it further.
        if not part or self._pages.is_shared(page := sequence.pages[full]):
            return
        before: int | bytes = sequence.salt
        if full:
            before = sequence.pages[full - 1]
            if not self._pages.is_known(before):
                # Another sequence published first: the cache maps to its pages.
                found = self._match_cached(sequence, full * size)
                if found.num_tokens < full * size:
                    return
                before = found.pages[-1]
        tokens = sequence.tokens[full * size : full * size + part]
        # A page of the same tokens may be cached already: only its retention is extended.
        known, common = self._following.find(before, tokens)
        if common == part:
            self.extend_retention(sequence, [known])
            return
        self._pages.mark_known([page])
        self._following.add(before, tokens, page)
        self._matched.clear()
        self._record_tokens(sequence, full, part, page)
        priority, seconds = sequence.retention
        parent = before if isinstance(before, int) else -1
        self._pages.record_origin(page, PageOrigin(parent, full, sequence.salt, priority, seconds))

    def _record_origins(self, sequence: Sequence, end: int, known: set[int]) -> None:
        """Record parent and depth of newly cached pages among the first ones of a sequence."""
        pages, depths = sequence.pages, []
        # They are among the last pages.
        for depth in range(end - 1, -1, -1):
            if pages[depth] in known:
                depths.append(depth)
                if len(depths) == len(known):
                    break
        is_known, found = self._pages.is_known, _NOTHING.pages
        if any(depth and not is_known(pages[depth - 1]) for depth in depths):
            # Another sequence published first: the cache maps to its pages.
            found = self._match_cached(sequence, end * self._page_size).pages
        priority, seconds = sequence.retention
        for depth in reversed(depths):
            # Never a page that is not cached: it is free, and another's, without notice.
            parent = pages[depth - 1] if depth and is_known(pages[depth - 1]) else -1
            if 0 < depth <= len(found) and parent < 0:
                parent = found[depth - 1]
            page, size = pages[depth], self._page_size
            if parent >= 0 or not depth:
                tokens = sequence.tokens[depth * size : (depth + 1) * size]
                self._following.add(parent if depth else sequence.salt, tokens, page)
            self._record_tokens(sequence, depth, size, page)
            self._pages.record_origin(
                page,
                PageOrigin(parent, depth, sequence.salt, priority, seconds),
            )

    def _record_tokens(self, sequence: Sequence, depth: int, count: int, page: int) -> None:
        """Record the tokens of a cached page for the operator view, except those of tenants."""
        is_recorded = self._is_recorded[page] = not sequence.tenant
        if is_recorded:
            begin = depth * self._page_size
            self._tokens[page, :count] = sequence.tokens[begin : begin + count]

    def filled(self, page: int) -> int:
        """Return the number of tokens in a cached page that can be shared."""
        size = self._following.num_tokens(page)
        return self._page_size if size is None else size

    def tokens_in(self, page: int) -> bytes:
        """Return the token ids in a cached page, int32; empty where they are not recorded."""
        return self._tokens[page, : self.filled(page)].tobytes() if self._is_recorded[page] else b""

    def extend_retention(self, sequence: Sequence, shared: list[int]) -> None:
        """Raise the retention of shared pages to that of a sequence, where it is higher."""
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
            self._pages.record_origin(page, more)

    def check(self) -> None:
        """Verify that pages are found behind cached pages alone.

        Raises:
            PageInvariantError: one is found behind a page that may get other tokens unnoticed.
        """
        if bad := [page for page in self._following.predecessors if not self._pages.is_known(page)]:
            raise PageInvariantError(f"pages are found behind {bad}, which are not cached")

    def evict(self, pages: list[int]) -> None:
        """Evict the unreferenced cached pages among some, without offloading them to tiers."""
        for page in pages:
            if self._pages.is_known(page) and not self._pages.is_referenced(page):
                self._offload.discard_page(page)
                self._pages.uncache(page)
        self._matched.clear()

    def rebuild(self) -> None:
        """Restart all lookups with a new, empty prefix cache."""
        self._matched.clear()
        self._following.clear()
        # Running sequences offer all of their pages again.
        self._queue.num_published[:] = 0
        for sequence in self._queue:
            self.start_sequence(sequence)
