"""Number of usable cores: a container may have fewer than its machine."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Number of cores on which this process may run, at least one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
