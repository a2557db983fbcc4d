"""How many cores there are for this process: a container may have fewer than its machine."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Cores that it may run on, at least one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
