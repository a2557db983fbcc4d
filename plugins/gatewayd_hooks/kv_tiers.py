"""KV tiers: memory behind the pool, where pages go that it gives up and where they are found again.

Tiers stand in a row. The prefix cache's pages that are evicted from the pool go to the first one;
what a tier gives up goes to the next, and what the last one gives up is gone. A waiting sequence
takes the pages behind its cached prefix from whichever tier has them.

A page is named by a key that stands for all that its content follows from: the model, the form of
its KV, the tenant's salt and every token up to its end. Equal keys mean equal bytes.
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
    """Keeps pages by their keys; it may also have what ``Fetches``, ``Leaves``, ``Outlives`` have.

    It may lose a page at any time, but never gives back other bytes than it was given: a tier that
    keeps pages where they can be damaged checks them. Keys follow from tokens by a digest that
    anybody can compute: a tier that others may read keeps no key as it is.
    """

    def open(self, resources: EngineResources) -> None:
        """Learn ``page_bytes``."""

    def find(self, keys: Sequence[bytes]) -> int:
        """Count the leading pages that it has; changes nothing."""

    def put(self, key: bytes, page: NDArray[np.uint8]) -> Sequence[tuple[bytes, NDArray[np.uint8]]]:
        """Keep a copy of a page; one that it has already counts as used.

        Args:
            key: ``KEY_BYTES`` long.
            page: its bytes, shape ``[page_bytes]``, which change after the call.

        Returns:
            What it gave up for it, unchanged until the next call.
        """

    def get(self, keys: Sequence[bytes]) -> Sequence[NDArray[np.uint8]]:
        """Give the leading pages that are at hand, without waiting for a device.

        They count as used, and do not change until they are released as often as they were given.
        """

    def release(self, keys: Sequence[bytes]) -> None:
        """Pages that ``get`` gave have been copied."""

    def __len__(self) -> int:
        """Pages that it has."""


class Fetches(Protocol):
    """A tier whose pages are brought to memory first, beside the engine's steps."""

    def fetch(self, keys: Sequence[bytes]) -> None:
        """Begin to bring these pages to memory, if there is room; may be asked again."""

    def ready(self, keys: Sequence[bytes]) -> int:
        """Count the leading pages that ``get`` would give; changes nothing."""

    def page_seconds(self) -> float:
        """What bringing a page to memory has taken lately, seconds; 0 before it was measured."""


class Leaves(Protocol):
    """A tier whose pages end with the process, and that gives them away before."""

    def leave(self) -> Iterable[tuple[bytes, NDArray[np.uint8]]]:
        """Give all its pages, the most useful first; they do not change until it is closed."""


class Outlives(Protocol):
    """A tier whose pages are found again by a later process."""

    def keep(self, pages: Iterable[tuple[bytes, NDArray[np.uint8]]], seconds: float) -> None:
        """The engine stops: keep what would end with it, and what was put before.

        Only here may a tier wait for its device. It is closed afterwards.

        Args:
            pages: the most useful first, each unchanged until the call is over; some that it has.
            seconds: for which it may wait.
        """
