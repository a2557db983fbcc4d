"""Another process that computes beside a server: one that never waits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

ALONE, FREE, PINNED = "nothing else", "a process that spins", "one that spins on core 0"
LOADS = (ALONE, FREE, PINNED)


@contextmanager
def spinning(load: str) -> Iterator[None]:
    """Run the other process while the block lasts."""
    if load == ALONE:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        if load == PINNED:
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        yield
    finally:
        process.kill()
        process.wait()
