"""Prefix caches, which find pages already computed, and eviction, which gives them up.

The engine owns pages and reference counts. A page is free, held (referenced by a running
sequence) or cached (nobody references it but the prefix cache knows its content). The prefix
cache maps tokens to pages; the eviction strategy orders the cached ones.
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
    """A cached prefix that may end within a page.

    Attributes:
        pages: that hold it, in prompt order, shape ``[ceil(num_tokens / page_size)]``. If the
            prefix ends within the last one, what that page holds behind it is another's: the
            engine copies it.
        num_tokens: of the prefix.
    """

    pages: Sequence[int]
    num_tokens: int


NORMAL_PRIORITY = 50
"""Of pages that nobody wants kept longer, or sooner given up, than others."""


@dataclass(frozen=True, slots=True)
class PageOrigin:
    """Where a page stands, and how long its requests want it kept.

    Attributes:
        parent: the page whose tokens come before, -1 for none or if that is not cached.
        depth: pages before it in its prefix; computing it again costs the more, the more there
            are.
        salt: of the prefix cache.
        priority: from 0, given up first, to 100; ``NORMAL_PRIORITY`` unless a request says
            otherwise, the highest of those that want it.
        seconds: after its last use for which a higher priority counts.
    """

    parent: int
    depth: int
    salt: bytes = b""
    priority: int = NORMAL_PRIORITY
    seconds: float = 0.0


class PrefixCacheStrategy(Strategy, Protocol[TrailT]):
    """Maps prefixes of token ids to pages, within one salt.

    A ``trail`` is the strategy's own note of one sequence (hashes, a tree node); the engine
    keeps it and hands it back. A sequence with the prompt of another starts from
    ``copy.copy(trail)``, before anything but the prompt was inserted: what ``insert`` changes in
    one must not show in the other.
    """

    def open(self, resources: EngineResources) -> None:
        """Learn the page size."""

    def begin(self, tokens: NDArray[np.int32], salt: bytes) -> TrailT:
        """Start the trail of a sequence from its prompt.

        Args:
            tokens: prompt ids, shape ``[prompt_len]``.
            salt: sequences with different salts never share a page (one salt per tenant
                and adapter).
        """

    def match(self, trail: TrailT) -> Sequence[int] | Match:
        """Find the longest cached prefix.

        Changes nothing; the pages may be evicted until the engine references them. The engine
        leaves a token to compute itself: it drops a full page, or shortens a ``Match``.

        Returns:
            Page ids of the longest prefix of full pages in prompt order, shape ``[num_pages]``;
            or a ``Match``, which counts in tokens, with the longest prefix of any length.
        """

    def insert(
        self, trail: TrailT, tokens: NDArray[np.int32], pages: NDArray[np.int32]
    ) -> Sequence[int]:
        """Tell that full pages of a sequence are computed.

        Args:
            trail: the sequence's trail, updated in place.
            tokens: all its computed ids from the beginning, shape ``[num_full * page_size]``.
            pages: the pages that hold them, shape ``[num_full]``. Earlier calls told a
                prefix of these.

        Returns:
            The pages that the cache now maps to and did not before. A page whose content is
            already known under another page is not among them.
        """

    def forget(self, page: int) -> None:
        """A cached page was evicted: never return it again. Unknown pages are ignored."""


class EvictionStrategy(Strategy, Protocol):
    """Orders the cached pages that are not referenced.

    It may also have the methods of ``KnowsOrigins``, ``Pins``, ``TellsPins`` and ``Drops``.
    """

    def open(self, resources: EngineResources) -> None:
        """Learn the number of pages."""

    def release(self, page: int) -> None:
        """The last reference to a cached page is gone: it may be evicted."""

    def reuse(self, page: int) -> None:
        """A cached page is referenced again: it may not be evicted."""

    def victim(self) -> int:
        """Choose a page to evict and drop it from the order.

        Raises:
            LookupError: no page may be evicted.
        """

    def __len__(self) -> int:
        """Pages that may be evicted."""


class KnowsOrigins(Protocol):
    """An eviction that looks at where a page stands."""

    def cached(self, page: int, origin: PageOrigin) -> None:
        """The prefix cache maps to this page from now on, until ``victim`` or ``drop``.

        It is held, and not released for the first time yet; the pages before it were told
        earlier. Told again when a request that shares the page wants it kept longer.
        """


class Pins(Protocol):
    """An eviction that can be asked to spare a page; it is never bound to."""

    def pin(self, page: int, seconds: float) -> None:
        """Give a page, and those before it, up after all others, until so many seconds are over.

        None is kept when nothing else is left. 0 takes back the pin that ends at this page; pages
        before it stay pinned for others. Pages that are not cached are ignored.
        """


class Drops(Protocol):
    """An eviction that lets others give up a page; without it an operator can evict none.

    New in 1.8.
    """

    def drop(self, page: int) -> None:
        """A page that may be evicted is given up now, whatever the order: as after ``victim``."""


class TellsPins(Protocol):
    """An eviction that says which pages are pinned; without it an operator sees none.

    New in 1.8.
    """

    def pinned(self) -> Collection[int]:
        """Pages that are pinned now, also those before the ones that ``pin`` was told; any order.

        Held ones may be among them. Asked between two steps, while somebody watches: a few times a
        second.
        """
