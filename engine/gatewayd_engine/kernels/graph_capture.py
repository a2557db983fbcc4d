"""Cleanup of a CUDA graph capture that failed."""

from __future__ import annotations

from contextlib import suppress

import torch


def end_failed(graph: torch.cuda.CUDAGraph, device: torch.device, pool: tuple[int, int]) -> None:
    """End a capture in which an exception was raised, so that later captures can use other pools.

    Errors of the cleanup itself are suppressed: they would hide the original one.

    Args:
        graph: graph being captured.
        device: device of the capture.
        pool: memory pool of the capture; must not be used again.
    """
    # Otherwise torch keeps capturing, and aborts the process at its next synchronisation.
    with suppress(Exception):
        graph.capture_end()
    # If that failed as well, the allocator still records into the pool and refuses to start
    # another capture.
    with suppress(Exception):
        torch._C._cuda_endAllocateToPool(device.index or 0, pool)
