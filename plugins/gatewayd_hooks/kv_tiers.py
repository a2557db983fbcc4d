"""KV tiers: storage behind the KV pool, to which evicted pages are offloaded.

Tiers are ordered. Prefix cache pages that are evicted from the pool go to the first tier; what a
tier evicts goes to the next, and what the last one evicts is discarded. A waiting sequence loads
the pages after its cached prefix from whichever tier has them.

A page's key depends on everything that determines its content: the model, the KV format, the
tenant's salt and every token up to its end. Equal keys mean equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources

KEY_BYTES = 32


class KvTierStrategy(Strategy, Protocol):
    """Stores pages by key; it may also implement ``Fetches``, ``Leaves`` and ``Outlives``.

    It may lose a page at any time, but never returns bytes other than those stored: a tier whose
    storage can be corrupted verifies pages. Keys are digests of tokens that anyone can compute: a
    tier that others can read does not store keys in plain form.
    """

    def open(self, resources: EngineResources) -> None:
        """Read ``page_bytes``."""

    def find(self, keys: Sequence[bytes]) -> int:
        """Return the number of leading pages that it has; changes nothing."""

    def put(self, key: bytes, page: NDArray[np.uint8]) -> Sequence[tuple[bytes, NDArray[np.uint8]]]:
        """Store a copy of a page; storing a page again counts as a use.

        Args:
            key: ``KEY_BYTES`` long.
            page: its bytes, shape ``[page_bytes]``, which change after the call.

        Returns:
            Pages evicted to make room, valid until the next call.
        """

    def get(self, keys: Sequence[bytes]) -> Sequence[NDArray[np.uint8]]:
        """Return the leading pages that are available without waiting for a device.

        They count as used, and do not change until they are released as often as they were
        returned.
        """

    def release(self, keys: Sequence[bytes]) -> None:
        """Release pages returned by ``get`` that have been copied."""

    def __len__(self) -> int:
        """Return the number of pages that it has."""


class Fetches(Protocol):
    """Optional part of a tier that loads pages to memory first, concurrently with engine steps."""

    def fetch(self, keys: Sequence[bytes]) -> None:
        """Start to load these pages to memory, if there is room; may be called repeatedly."""

    def ready(self, keys: Sequence[bytes]) -> int:
        """Return the number of leading pages that ``get`` would return; changes nothing."""

    def page_seconds(self) -> float:
        """Return the recent time to load a page, in seconds; 0 before the first measurement."""


class Leaves(Protocol):
    """Optional part of a tier in process memory, which passes its pages on before it closes."""

    def leave(self) -> Iterable[tuple[bytes, NDArray[np.uint8]]]:
        """Yield all pages, the most useful first; they do not change until the tier is closed."""


class Outlives(Protocol):
    """Optional part of a persistent tier, whose pages are found again by a later process."""

    def keep(self, pages: Iterable[tuple[bytes, NDArray[np.uint8]]], seconds: float) -> None:
        """Persist pages as the engine stops, and finish pending writes.

        Only here may a tier wait for its device. It is closed afterwards.

        Args:
            pages: the most useful first, each unchanged until the call returns; some may be stored
                already.
            seconds: for which it may wait.
        """
