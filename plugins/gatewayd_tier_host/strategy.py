"""KV tier in host memory, divided into pages with LRU eviction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources
    from gatewayd_tier_host.config import HostConfig

_PINNED = 256 << 20
"""Bytes pinned in one block: torch rounds each up to a power of two."""


class Host:
    """Pages by key, least recently used first.

    There is one more slot than pages: a new page is written there, and the page evicted for it
    stays valid until the next one.
    """

    def __init__(self, config: HostConfig) -> None:
        self._memory = int(config.memory)
        self._blocks: list[NDArray[np.uint8]] = []
        self._most = self._used = self._spare = 0
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self._pins: dict[bytes, int] = {}

    def open(self, resources: EngineResources) -> None:
        """Reserve the memory; the system commits it as it is written to, unless it is pinned.

        Raises:
            ValueError: it is smaller than a page.
        """
        most = self._memory // resources.page_bytes
        if not most:
            raise ValueError(
                f"[kv_tier.host] memory is {self._memory} bytes; a page of this model takes "
                f"{resources.page_bytes}"
            )
        self._blocks = _reserve(most + 1, resources.page_bytes, resources.device)
        self._most = self._spare = most

    def close(self) -> None:
        """Release the memory."""
        self._places.clear()
        self._blocks = []

    def find(self, keys: Sequence[bytes]) -> int:
        """See ``KvTierStrategy``."""
        places = self._places
        return next((i for i, key in enumerate(keys) if key not in places), len(keys))

    def put(self, key: bytes, page: NDArray[np.uint8]) -> Sequence[tuple[bytes, NDArray[np.uint8]]]:
        """See ``KvTierStrategy``; while every page is in use, none is stored."""
        if key in self._places:
            self._places.move_to_end(key)
            return []
        if self._used < self._most:
            self._page(self._used)[:] = page
            self._places[key] = self._used
            self._used += 1
            return []
        # Pages in use were moved to the end when they were returned, so the search is short.
        oldest = next((key for key in self._places if key not in self._pins), None)
        if oldest is None:
            return []
        # Into the spare slot, so that the evicted page stays valid in its own, the next spare one.
        self._page(self._spare)[:] = page
        self._places[key] = self._spare
        self._spare = self._places.pop(oldest)
        return [(oldest, self._page(self._spare))]

    def get(self, keys: Sequence[bytes]) -> Sequence[NDArray[np.uint8]]:
        """See ``KvTierStrategy``; pages in use are not evicted."""
        found = keys[: self.find(keys)]
        for key in found:
            self._places.move_to_end(key)
            self._pins[key] = self._pins.get(key, 0) + 1
        return [self._page(self._places[key]) for key in found]

    def release(self, keys: Sequence[bytes]) -> None:
        """See ``KvTierStrategy``."""
        for key in keys:
            left = self._pins.pop(key, 0) - 1
            if left > 0:
                self._pins[key] = left

    def leave(self) -> Sequence[tuple[bytes, NDArray[np.uint8]]]:
        """See ``Leaves``; most recently used first."""
        return [(key, self._page(place)) for key, place in reversed(self._places.items())]

    def __len__(self) -> int:
        return len(self._places)

    def _page(self, place: int) -> NDArray[np.uint8]:
        block, row = divmod(place, len(self._blocks[0]))
        page: NDArray[np.uint8] = self._blocks[block][row]
        return page


def _reserve(pages: int, page_bytes: int, device: str) -> list[NDArray[np.uint8]]:
    """Allocate memory for pages, in blocks of equal size except the last.

    With a GPU it is pinned, so that copies need no staging buffer.
    """
    if not device.startswith("cuda"):
        return [np.zeros((pages, page_bytes), np.uint8)]
    import torch

    each = max(1, _PINNED // page_bytes)
    return [
        torch.empty(
            (min(each, pages - first), page_bytes), dtype=torch.uint8, pin_memory=True
        ).numpy()
        for first in range(0, pages, each)
    ]
