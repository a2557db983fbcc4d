"""Thread and memory settings of the engine on a CPU; applied before torch is imported.

OpenMP workers that spin indefinitely while waiting stall as soon as another process needs their
core, as the gateway and its clients do. Workers that sleep at once are woken 150 times per step,
which takes longer than their work. So they spin for a moment, then sleep; ``thread_tuning``
decides step by step whether a single thread is faster. Compiled steps have threads of their own
(``kernels.cpu.team``), next to which torch keeps to one.

Every operation of a step allocates its result, and the next step frees it. By default glibc
returns large blocks to the system each time, and gets them again as pages to be zeroed: a third of
the time of a step of 512 tokens. So freed memory is retained, in a single heap for all threads: by
default, each thread that compiles a grammar leaves holes in a heap of its own that no other thread
can use.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

from gatewayd_engine.process.config import EngineConfig
from gatewayd_engine.process.engine_cpus import EngineCpus, bind, engine_cpus
from gatewayd_engine.process.machine_cpus import MachineCpus

_SPINS = 10_000
"""Some hundred microseconds: longer than the pauses within a step. Embedded model, two cores,
tokens/s at batch 1 / 8 / 64: no spinning 144 / 1,067 / 3,468; this 453 / 2,465 / 5,674; one
thread 338 / 1,596 / 3,934."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_RETAINED_BYTES, _HEAP_BYTES = 1 << 30, 32 << 20
"""Free memory retained at most, and the largest allocation served from it (glibc's limit)."""


@cache
def machine() -> MachineCpus:
    """Return the CPUs of this process as they were at its start, before it was bound to some."""
    return MachineCpus.read()


def choose(config: EngineConfig) -> EngineCpus:
    """Return what an engine computes on.

    Raises:
        ValueError: CPUs are configured that this process may not use.
    """
    return engine_cpus(
        machine(),
        threads=config.threads,
        listed=config.cpus,
        replica=config.replica,
        replicas=config.replicas,
    )


def settle_cpus(config: EngineConfig) -> int:
    """Keep this process to the CPUs of its engine; see ``choose``.

    Returns:
        The number of threads.
    """
    chosen = choose(config)
    # The host's part of a GPU's step goes where the kernel finds room, unless told otherwise.
    if config.cpus or not config.device.startswith("cuda"):
        bind(chosen)
    return chosen.threads


def configure_threads(chosen: int | None = None) -> int:
    """Configure OpenMP and malloc for steps.

    Args:
        chosen: number of threads; None for as many as an engine takes by itself.

    Returns:
        The number of threads.
    """
    chosen = chosen or engine_cpus(machine()).threads
    _retain_memory()
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ["GOMP_SPINCOUNT"] = str(_SPINS)
    os.environ["KMP_BLOCKTIME"] = "1"  # milliseconds; the same for Intel's and LLVM's runtimes
    # Weights and contexts are read sequentially in each step: with 4 KiB pages, a third of that
    # time was spent in address translation.
    os.environ["THP_MEM_ALLOC_ENABLE"] = "1"
    os.environ["OMP_NUM_THREADS"] = str(chosen)
    os.environ["MKL_NUM_THREADS"] = str(chosen)
    return chosen


def _retain_memory() -> None:
    """Make malloc retain freed memory for all threads; no effect without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # Setting it also turns off glibc's dynamic adjustment of both thresholds.
        mallopt(_M_MMAP_THRESHOLD, _HEAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _RETAINED_BYTES)
        mallopt(_M_ARENA_MAX, 1)
