"""Timing of kernel launches as in captured steps: in a CUDA graph, without host overhead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Protocol

import torch

from gatewayd_engine.kernels.graph_capture import end_failed
from gatewayd_engine.tuning.table import DeviceLost, NoMemory

_REPLAYS = 5
_UNCOUNTED = 2
"""The first replays load compiled code, and run at low clock rates."""
_NO_MEMORY = "out of memory"
"""Part of CUDA's error message outside of torch's allocator, as when a graph is instantiated."""


class LaunchClock(Protocol):
    """Clock for kernel launches."""

    def __call__(self, calls: Sequence[Callable[[], object]]) -> float:
        """Return the median microseconds per call of some calls launched one after another.

        They must not allocate device memory that is read after they return.
        """


@contextmanager
def device_errors(device: torch.device, name: str) -> Iterator[None]:
    """Classify exceptions by whether the device can still be used.

    Raises:
        DeviceLost: the device rejects all calls, as it does after an illegal memory access.
        NoMemory: the device works, but has too little memory.
    """
    try:
        yield
    except Exception as error:
        # First: on a lost device every error, also one about memory, says nothing about its cause.
        if _is_lost(device):
            raise DeviceLost(f"the device was lost to {name}: {error}") from error
        if isinstance(error, torch.OutOfMemoryError) or _NO_MEMORY in str(error):
            raise NoMemory(f"too little memory for {name}: {error}") from error
        raise


def _is_lost(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    try:
        # Faults of kernels are reported by later calls, at the latest by this one.
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


class GraphClock:
    """Clock that captures calls into a CUDA graph, and times its replays.

    Args:
        device: the CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Captures are not possible on the default stream.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, calls: Sequence[Callable[[], object]]) -> float:
        """See ``LaunchClock``."""
        stream = self._stream
        # Operands may still be written by kernels of the current stream.
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        found: list[float] = []
        with torch.cuda.stream(stream):
            # The first launch creates library handles and workspaces, which cannot be captured.
            calls[0]()
            stream.synchronize()
            # Not ``torch.cuda.graph``, which collects garbage and empties the cache each time.
            # The pool is freed with its graphs, so each measurement uses a new one.
            pool = torch.cuda.graph_pool_handle()
            graph.capture_begin(pool=pool)
            try:
                for call in calls:
                    call()
            # Whatever interrupts a capture, it has to be ended before the device can be used again.
            except BaseException:
                end_failed(graph, self._device, pool)
                raise
            graph.capture_end()
            for _ in range(_UNCOUNTED + _REPLAYS):
                begin.record(stream)
                graph.replay()
                end.record(stream)
                end.synchronize()
                # Milliseconds become microseconds.
                found.append(begin.elapsed_time(end) * 1000 / len(calls))
        torch.cuda.current_stream().wait_stream(stream)
        return median(found[_UNCOUNTED:])
