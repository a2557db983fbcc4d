"""Ends a CUDA graph capture in which something was raised."""

from __future__ import annotations

from contextlib import suppress

import torch


def end_failed(graph: torch.cuda.CUDAGraph, device: torch.device, pool: tuple[int, int]) -> None:
    """End a capture in which something was raised, so that others can follow in other pools.

    Errors of the ending itself are dropped: they would hide what went wrong.

    Args:
        graph: that is being captured.
        device: whose.
        pool: that it allocates from; not to be used again.
    """
    # Otherwise torch goes on capturing, and ends the process at its next synchronisation.
    with suppress(Exception):
        graph.capture_end()
    # Where that failed, too, the allocator still records into the pool, and refuses to begin
    # another capture there.
    with suppress(Exception):
        torch._C._cuda_endAllocateToPool(device.index or 0, pool)
