"""Budget of the KV memory, shared by the pool and draft models."""

from __future__ import annotations

import threading
from collections import deque


class MemoryBudget:
    """Thread-safe budget of bytes that can be reserved.

    Args:
        free: bytes available initially.
    """

    def __init__(self, free: int) -> None:
        self._free = max(free, 0)
        # Draft models are loaded in background threads as well.
        self._lock = threading.Lock()
        # Released without the lock: a finalizer may run in a thread that holds it.
        self._released: deque[int] = deque()

    @property
    def free(self) -> int:
        """Bytes that are not reserved."""
        with self._lock:
            self._add_released()
            return self._free

    def reserve(self, unit: int, most: int) -> int:
        """Reserve up to ``most`` units of ``unit`` bytes; return how many were available."""
        with self._lock:
            self._add_released()
            count = min(self._free // unit, most)
            self._free -= count * unit
        return count

    def release(self, num_bytes: int) -> None:
        """Release reserved bytes; may be called by a finalizer."""
        self._released.append(num_bytes)

    def _add_released(self) -> None:
        while self._released:
            self._free += self._released.popleft()


def mib(num_bytes: int) -> str:
    """Format bytes as MiB."""
    return f"{num_bytes / (1 << 20):.1f} MiB"
