"""Budget of the KV memory, shared by the pool and draft models."""

from __future__ import annotations

import threading


class MemoryBudget:
    """Thread-safe budget of bytes that can be reserved.

    Args:
        free: bytes available initially.
    """

    def __init__(self, free: int) -> None:
        self._free = max(free, 0)
        # Draft models are loaded in background threads as well.
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """Bytes that are not reserved."""
        return self._free

    def reserve(self, unit: int, most: int) -> int:
        """Reserve up to ``most`` units of ``unit`` bytes; return how many were available."""
        with self._lock:
            count = min(self._free // unit, most)
            self._free -= count * unit
        return count

    def release(self, num_bytes: int) -> None:
        """Release reserved bytes."""
        with self._lock:
            self._free += num_bytes


def mib(num_bytes: int) -> str:
    """Format bytes as MiB."""
    return f"{num_bytes / (1 << 20):.1f} MiB"
