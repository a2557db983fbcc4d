"""Threads and memory of the engine on a CPU; must act before torch is imported.

OpenMP workers that spin without end while they wait collapse as soon as another process takes
their core, and the gateway and its clients do. Workers that sleep at once are woken 150 times in
a step, which takes longer than what they compute. So they spin for a moment, then sleep; whether
one thread would be faster is seen step by step (``pace``).

Every operation of a step allocates its result and the next step frees it. By default glibc gives
large ones back to the system each time, and takes them again as pages to be zeroed: of a step of
512 tokens that was a third. What is kept must be of use to all, then: by default each thread that
compiles a grammar leaves holes in a heap of its own, and nobody else can fill them.
"""

from __future__ import annotations

import ctypes
import os

_SPINS = 10_000
"""Some hundred microseconds: longer than the pauses inside a step. Embedded model, two cores,
tokens/s at batch 1 / 8 / 64: no spinning 144 / 1,067 / 3,468; this 453 / 2,465 / 5,674; one
thread 338 / 1,596 / 3,934."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BYTES, _HEAP_BYTES = 1 << 30, 32 << 20
"""Free memory is kept up to the first; allocations up to the second, glibc's limit, come from
what is kept."""


def available_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose(threads: int | None) -> int:
    """Threads to use at most: the configured number, or one for each core.

    Of more than three cores, one is left to the gateway.
    """
    cores = available_cores()
    return threads or (cores if cores <= 3 else cores - 1)


def settle(threads: int | None) -> int:
    """Set OpenMP and malloc up for steps; returns the number of threads."""
    chosen = choose(threads)
    _keep_memory()
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ["GOMP_SPINCOUNT"] = str(_SPINS)
    os.environ["KMP_BLOCKTIME"] = "1"  # milliseconds; the same for Intel's and LLVM's runtimes
    # Weights and contexts are read from end to end each step: with pages of 4 KiB a third of that
    # time went into address translation.
    os.environ["THP_MEM_ALLOC_ENABLE"] = "1"
    os.environ["OMP_NUM_THREADS"] = str(chosen)
    os.environ["MKL_NUM_THREADS"] = str(chosen)
    return chosen


def _keep_memory() -> None:
    """Let malloc keep what is freed, for all threads; without effect where it is not glibc's."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _HEAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_ARENA_MAX, 1)
