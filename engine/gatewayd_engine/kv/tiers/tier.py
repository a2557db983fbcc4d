"""One KV tier: what it answers is looked at before it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.config import StrategyChoice


@dataclass(frozen=True, slots=True, eq=False)
class Tier:
    """A tier that serves.

    Its methods raise what the strategy raises, and ``ValueError`` or ``TypeError`` where an answer
    cannot be.

    Attributes:
        choice: what it was made from.
        strategy: itself.
        watched: the same, timed: what to call.
        page_bytes: of a page.
        is_slow: whether its pages have to be fetched.
    """

    choice: StrategyChoice
    strategy: Any
    watched: Any
    page_bytes: int
    is_slow: bool

    def find(self, keys: list[bytes]) -> int:
        """How many of the leading pages it has."""
        return _count(self.watched.find(keys), keys)

    def ready(self, keys: list[bytes]) -> int:
        """How many of the leading pages of a slow one are in memory."""
        return _count(self.watched.ready(keys), keys)

    def put(self, key: bytes, page: NDArray[np.uint8]) -> list[tuple[bytes, NDArray[np.uint8]]]:
        """Give it a page; returns what it gives up."""
        given_up = list(self.watched.put(key, page))
        for other, left in given_up:
            if not isinstance(other, bytes):
                raise TypeError("gave up what has no key")
            self._check(left)
        return given_up

    def get(self, keys: list[bytes]) -> list[NDArray[np.uint8]]:
        """The leading pages that are at hand; to be released."""
        pages = list(self.watched.get(keys))
        if len(pages) > len(keys):
            raise ValueError(f"gave {len(pages)} pages for {len(keys)} keys")
        for page in pages:
            self._check(page)
        return pages

    def _check(self, page: NDArray[np.uint8]) -> None:
        if page.dtype != np.uint8 or page.shape != (self.page_bytes,):
            raise ValueError(f"gave {page.dtype} of shape {page.shape} for a page")


@dataclass(frozen=True, slots=True)
class Located:
    """Consecutive pages that one tier has."""

    tier: Tier
    keys: list[bytes]


def _count(answer: object, keys: list[bytes]) -> int:
    if not isinstance(answer, int) or not 0 <= answer <= len(keys):
        raise ValueError(f"found {answer!r} of {len(keys)} pages")
    return answer
