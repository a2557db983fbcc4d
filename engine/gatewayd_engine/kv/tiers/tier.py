"""Validated calls of one KV tier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.config import StrategyChoice


@dataclass(frozen=True, slots=True, eq=False)
class Tier:
    """An active KV tier.

    Its methods raise what the strategy raises, and ``ValueError`` or ``TypeError`` for invalid
    answers.

    Attributes:
        choice: configuration it was opened from.
        strategy: the strategy itself.
        watched: proxy of the strategy that measures calls; use this for calls.
        page_bytes: bytes of a page.
        is_slow: whether its pages have to be prefetched.
    """

    choice: StrategyChoice
    strategy: Any
    watched: Any
    page_bytes: int
    is_slow: bool

    def find(self, keys: list[bytes]) -> int:
        """Return the number of leading pages that it has."""
        return _count(self.watched.find(keys), keys)

    def ready(self, keys: list[bytes]) -> int:
        """Return the number of leading pages of a slow tier that are in memory."""
        return _count(self.watched.ready(keys), keys)

    def put(self, key: bytes, page: NDArray[np.uint8]) -> list[tuple[bytes, NDArray[np.uint8]]]:
        """Store a page; return the evicted ones."""
        evicted = list(self.watched.put(key, page))
        for other, left in evicted:
            if not isinstance(other, bytes):
                raise TypeError("evicted a page without a key")
            self._check(left)
        return evicted

    def get(self, keys: list[bytes]) -> list[NDArray[np.uint8]]:
        """Get the leading pages that are available; the caller must release them."""
        pages = list(self.watched.get(keys))
        if len(pages) > len(keys):
            raise ValueError(f"returned {len(pages)} pages for {len(keys)} keys")
        for page in pages:
            self._check(page)
        return pages

    def _check(self, page: NDArray[np.uint8]) -> None:
        if page.dtype != np.uint8 or page.shape != (self.page_bytes,):
            raise ValueError(f"returned {page.dtype} of shape {page.shape} as a page")


@dataclass(frozen=True, slots=True)
class PageRun:
    """Consecutive pages in one tier."""

    tier: Tier
    keys: list[bytes]


def _count(answer: object, keys: list[bytes]) -> int:
    if not isinstance(answer, int) or not 0 <= answer <= len(keys):
        raise ValueError(f"found {answer!r} of {len(keys)} pages")
    return answer
