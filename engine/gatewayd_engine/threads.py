"""Threads of the engine on a CPU; must act before torch is imported.

OpenMP workers that spin while they wait collapse as soon as another process takes their core,
and the gateway and its clients do: a decode step went from 9 ms to 136 ms on a half-busy
two-core machine. So they sleep while they wait.
"""

from __future__ import annotations

import os


def available_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def settle(threads: int | None) -> int:
    """Set OpenMP up for a machine that is shared, and choose the number of threads.

    One core in four, at least one, is left to the gateway: on two cores the engine computes on
    one, and HTTP never waits for it.
    """
    chosen = threads or max(1, available_cores() * 3 // 4)
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ["KMP_BLOCKTIME"] = "0"
    # Weights and contexts are read from end to end each step: with pages of 4 KiB a third of that
    # time went into address translation.
    os.environ["THP_MEM_ALLOC_ENABLE"] = "1"
    os.environ["OMP_NUM_THREADS"] = str(chosen)
    os.environ["MKL_NUM_THREADS"] = str(chosen)
    return chosen
