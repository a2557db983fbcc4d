"""Simulates the engine for a prefix cache: pages are reused, and every result is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np

from gatewayd_hooks.caching import Match, PrefixCacheStrategy
from gatewayd_hooks.resources import EngineResources

_MAX_SEQUENCES = 6
_MAX_TOKENS = 24

Key = tuple[bytes, tuple[int, ...]]
"""Salt and all tokens up to the end of a page."""


@dataclass(eq=False, slots=True)
class _Holder:
    """Sequence; one without pages waits."""

    tokens: list[int]
    prompt_len: int
    salt: bytes
    trail: Any
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    inserted: int = 0
    """Number of full pages inserted into the cache since it has its present pages."""
    most_inserted: int = 0
    """Maximum of ``inserted``: the trail knows these tokens."""
    is_running: bool = False


class FakePages:
    """Page pool with sequences that arrive, compute, are preempted and end.

    The expected state is a dictionary from all tokens up to the end of a page to that page.

    Args:
        cache: opened.
        resources: its page size and number of pages; both should be small.
    """

    def __init__(self, cache: PrefixCacheStrategy[Any], resources: EngineResources) -> None:
        self._cache = cache
        self._size = resources.page_size
        self._free = list(range(resources.num_pages))
        self._refs = [0] * resources.num_pages
        self._page_of: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}
        self._holders: list[_Holder] = []
        self.num_hits = 0

    def act(self, event: str, which: int, bits: int) -> None:
        """Apply an event.

        Args:
            event: ``arrive``, ``place`` (admit or preempt), ``compute``, ``end``, ``evict`` or
                ``forget`` (a page that the cache does not know).
            which: chooses a sequence or a page; any number.
            bits: source of token ids, each 0 or 1, so that many prompts have common prefixes.
        """
        if event == "arrive" and len(self._holders) < _MAX_SEQUENCES:
            tokens = [bits >> i & 1 for i in range(1 + which % 12)]
            self._arrive(tokens, (b"", b"\x00", b"tenant")[bits % 3])
        elif event == "evict":
            self._evict(which)
        elif event == "forget":
            unknown = [page for page in range(len(self._refs)) if page not in self._key_of]
            if unknown:
                self._cache.forget(unknown[which % len(unknown)])
        elif self._holders:
            holder = self._holders[which % len(self._holders)]
            self.check_match(holder)
            if event == "end":
                self._release(holder)
                self._holders.remove(holder)
            elif event == "place" and holder.is_running:
                self._release(holder)
            elif event == "place":
                self._admit(holder)
            elif event == "compute" and holder.is_running:
                self._compute(holder, 1 + which // 16 % 6, bits)

    def follow(self, cache: PrefixCacheStrategy[Any]) -> None:
        """Continue with a cache that took over the state of the one before."""
        self._cache = cache

    def check_match(self, holder: _Holder) -> Match:
        """Match a sequence's prefix, twice, and compare with the expected result."""
        size = self._size
        # The trail knows the prompt, and generated tokens once they were inserted.
        known = max(holder.prompt_len, holder.most_inserted * size)
        expected: list[int] = []
        for i in range(known // size):
            page = self._page_of.get(self._key(holder, i))
            if page is None:
                break
            expected.append(page)
        whole = len(expected)
        last, extra = self._closest(holder, whole, known)
        match = Match(expected, whole * size)
        # Twice, as matching must change nothing.
        for _ in range(2):
            found = self._cache.match(holder.trail)
            if not isinstance(found, Match):
                assert list(found) == expected, "the longest cached prefix of full pages"
                continue
            assert list(found.pages[:whole]) == expected, "the longest cached prefix"
            assert found.num_tokens == whole * size + extra, "to the last token"
            assert len(found.pages) == whole + (extra > 0), "a partial page for its end, if needed"
            assert not extra or found.pages[-1] in last, "a page with that beginning"
            match = found
        return match

    def _closest(self, holder: _Holder, whole: int, known: int) -> tuple[set[int], int]:
        """Return the pages that share most tokens after the full ones, and how many these are."""
        begin = whole * self._size
        before, wanted = tuple(holder.tokens[:begin]), holder.tokens[begin:known]
        common: dict[int, int] = {}
        if not wanted:
            return set(), 0
        for (salt, tokens), page in self._page_of.items():
            if len(tokens) == begin + self._size and (salt, tokens[:begin]) == (
                holder.salt,
                before,
            ):
                pairs = zip(wanted, tokens[begin:], strict=False)
                common[page] = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        most = max(common.values(), default=0)
        return {page for page, tokens in common.items() if tokens == most}, most

    def _key(self, holder: _Holder, index: int) -> Key:
        return holder.salt, tuple(holder.tokens[: (index + 1) * self._size])

    def _arrive(self, tokens: list[int], salt: bytes) -> None:
        trail = self._cache.begin(np.array(tokens, np.int32), salt)
        holder = _Holder(tokens, len(tokens), salt, trail)
        self.check_match(holder)
        self._holders.append(holder)

    def _admit(self, holder: _Holder) -> None:
        match = self.check_match(holder)
        # The last token is always computed, for its logits.
        tokens = min(match.num_tokens, len(holder.tokens) - 1)
        shared = list(match.pages[: tokens // self._size])
        self.num_hits += len(shared)
        for page in shared:
            self._refs[page] += 1
        holder.pages = shared
        holder.inserted = len(shared)
        holder.computed = len(shared) * self._size
        holder.is_running = True
        if tokens > holder.computed and self._free:
            # A partially matched page is copied.
            self._allocate(holder)
            holder.computed = tokens

    def _release(self, holder: _Holder) -> None:
        for page in reversed(holder.pages):
            self._refs[page] -= 1
            if not self._refs[page] and page not in self._key_of:
                self._free.append(page)
        holder.pages = []
        holder.is_running = False

    def _compute(self, holder: _Holder, count: int, bits: int) -> None:
        """Compute tokens, then generated ones, and insert full pages."""
        for i in range(count):
            if holder.computed == len(holder.pages) * self._size:
                # Without a free or cached page it is preempted.
                if not self._free and not self._evict(bits):
                    self._release(holder)
                    return
                self._allocate(holder)
            if holder.computed == len(holder.tokens):
                if len(holder.tokens) == _MAX_TOKENS:
                    break
                holder.tokens.append(bits >> i & 1)
            holder.computed += 1
        full = holder.computed // self._size
        if full > holder.inserted:
            self._insert(holder, full)

    def _allocate(self, holder: _Holder) -> None:
        page = self._free.pop()
        self._refs[page] = 1
        holder.pages.append(page)

    def _insert(self, holder: _Holder, full: int) -> None:
        holder.inserted = full
        holder.most_inserted = max(holder.most_inserted, full)
        pages = holder.pages[:full]
        expected = set()
        for i, page in enumerate(pages):
            key = self._key(holder, i)
            if key not in self._page_of:
                self._page_of[key] = page
                self._key_of[page] = key
                expected.add(page)
        tokens = np.array(holder.tokens[: full * self._size], np.int32)
        taken = self._cache.insert(holder.trail, tokens, np.array(pages, np.int32))
        assert len(set(taken)) == len(taken), "a page is inserted once"
        assert set(taken) == expected, "just the pages whose content was not known"
        self.check_match(holder)

    def _evict(self, which: int) -> bool:
        cached = self.cached
        if not cached:
            return False
        page = cached[which % len(cached)]
        del self._page_of[self._key_of.pop(page)]
        self._cache.forget(page)
        self._free.append(page)
        return True

    @property
    def cached(self) -> Sequence[int]:
        """Cached pages without references."""
        return [page for page in self._key_of if not self._refs[page]]
