"""What of the memory for keys and values is taken: by the pool, and by models of drafters."""

from __future__ import annotations

import threading


class MemoryBudget:
    """Bytes that may be taken; from any thread.

    Args:
        free: how many.
    """

    def __init__(self, free: int) -> None:
        self._free = max(free, 0)
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """Bytes that nobody has."""
        return self._free

    def take(self, unit: int, most: int) -> int:
        """Take as many units of so many bytes as there are, up to ``most``; how many it were."""
        with self._lock:
            count = min(self._free // unit, most)
            self._free -= count * unit
        return count

    def give_back(self, num_bytes: int) -> None:
        """They are free again."""
        with self._lock:
            self._free += num_bytes


def mib(num_bytes: int) -> str:
    """Bytes for people."""
    return f"{num_bytes / (1 << 20):.1f} MiB"
