"""Prefix caches, which find KV pages that are already computed, and eviction policies.

The engine owns pages and reference counts. A page is free, held (referenced by a running sequence)
or cached (without references, but its content is known to the prefix cache). The prefix cache maps
tokens to pages; the eviction strategy orders the cached pages.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources

TrailT = TypeVar("TrailT")


@dataclass(frozen=True, slots=True)
class Match:
    """Cached prefix that may end within a page.

    Attributes:
        pages: page ids in prompt order, shape ``[ceil(num_tokens / page_size)]``. If the prefix
            ends within the last page, the rest of that page belongs to another sequence: the engine
            copies the page on write.
        num_tokens: length of the prefix.
    """

    pages: Sequence[int]
    num_tokens: int


NORMAL_PRIORITY = 50
"""Retention priority of pages for which no request asks for longer or shorter retention."""


@dataclass(frozen=True, slots=True)
class PageOrigin:
    """Position of a page in its prefix, and the retention that requests ask for.

    Attributes:
        parent: the page with the preceding tokens, -1 if there is none or it is not cached.
        depth: number of pages before it in its prefix; recomputation costs more the deeper it is.
        salt: of the prefix cache.
        priority: retention priority from 0, evicted first, to 100; ``NORMAL_PRIORITY`` unless a
            request sets another; the highest among the requests that share the page.
        seconds: time after the last use for which a higher priority counts.
    """

    parent: int
    depth: int
    salt: bytes = b""
    priority: int = NORMAL_PRIORITY
    seconds: float = 0.0


class PrefixCacheStrategy(Strategy, Protocol[TrailT]):
    """Maps prefixes of token ids to pages, separately for each salt.

    A ``trail`` is the strategy's own state for one sequence (hashes, a tree node); the engine
    stores it and passes it back. A sequence with the same prompt as another starts from
    ``copy.copy(trail)``, taken before anything but the prompt was inserted: what ``insert`` changes
    in one must not show in the other.
    """

    def open(self, resources: EngineResources) -> None:
        """Read the page size."""

    def begin(self, tokens: NDArray[np.int32], salt: bytes) -> TrailT:
        """Create the trail of a sequence from its prompt.

        Args:
            tokens: prompt ids, shape ``[prompt_len]``.
            salt: sequences with different salts never share a page (one salt per tenant and
                adapter).
        """

    def match(self, trail: TrailT) -> Sequence[int] | Match:
        """Find the longest cached prefix.

        Changes nothing; the pages may be evicted until the engine references them. The engine
        always computes at least one token itself: it omits the last full page, or shortens a
        ``Match``.

        Returns:
            Page ids of the longest prefix of full pages in prompt order, shape ``[num_pages]``; or
            a ``Match``, which counts in tokens, with the longest prefix of any length.
        """

    def insert(
        self, trail: TrailT, tokens: NDArray[np.int32], pages: NDArray[np.int32]
    ) -> Sequence[int]:
        """Add the full pages of a sequence that have been computed.

        Args:
            trail: the sequence's trail, updated in place.
            tokens: all its computed ids from the beginning, shape ``[num_full * page_size]``.
            pages: the pages that contain them, shape ``[num_full]``. Earlier calls passed a prefix
                of these.

        Returns:
            Pages that the cache newly maps to. A page whose content is already known under another
            page is not among them.
        """

    def forget(self, page: int) -> None:
        """Remove an evicted page, so that it is never returned again. Unknown pages are ignored."""


class EvictionStrategy(Strategy, Protocol):
    """Orders the cached pages that are not referenced.

    It may also implement ``KnowsOrigins``, ``Pins``, ``TellsPins`` and ``Drops``.
    """

    def open(self, resources: EngineResources) -> None:
        """Read the number of pages."""

    def release(self, page: int) -> None:
        """Make a cached page evictable: its last reference was released."""

    def reuse(self, page: int) -> None:
        """Make a cached page unevictable: it is referenced again."""

    def victim(self) -> int:
        """Choose a page to evict and remove it from the order.

        Raises:
            LookupError: no page is evictable.
        """

    def __len__(self) -> int:
        """Return the number of evictable pages."""


class KnowsOrigins(Protocol):
    """Optional part of an eviction strategy that takes each page's position into account."""

    def cached(self, page: int, origin: PageOrigin) -> None:
        """Record that the prefix cache maps to this page, until ``victim`` or ``drop``.

        The page is held and has not been released yet; the pages before it were reported earlier.
        Called again when a request that shares the page asks for longer retention.
        """


class Pins(Protocol):
    """Optional part of an eviction strategy that can pin pages, as a best effort."""

    def pin(self, page: int, seconds: float) -> None:
        """Evict a page, and those before it, after all others for that many seconds.

        Pinned pages are evicted nevertheless when no others are left. 0 removes the pin that ends
        at this page; pages before it stay pinned by other pins. Pages that are not cached are
        ignored.
        """


class Drops(Protocol):
    """Optional part of an eviction strategy that allows explicit eviction, such as by an operator.

    Without it an operator cannot evict pages. New in 1.8.
    """

    def drop(self, page: int) -> None:
        """Remove an evictable page from the order, out of turn, as ``victim`` does."""


class TellsPins(Protocol):
    """Optional part of an eviction strategy that lists pinned pages.

    Without it an operator sees none. New in 1.8.
    """

    def pinned(self) -> Collection[int]:
        """Return all pages pinned now, in any order.

        Pages before those passed to ``pin`` are included, and held pages may be among them. Called
        between two steps while the state is being watched: a few times a second.
        """
