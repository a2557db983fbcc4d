"""Times launches as captured steps launch them: in a CUDA graph, without the host."""

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
"""The first replays load what was compiled, and find the clocks low."""
_NO_MEMORY = "out of memory"
"""What CUDA says where not torch's allocator asked it, as when a graph is instantiated."""


class LaunchClock(Protocol):
    """Measures how long launches take."""

    def __call__(self, calls: Sequence[Callable[[], object]]) -> float:
        """Microseconds of one of some calls, launched one behind the other; a median.

        They must not allocate memory of the device that is read after they return.
        """


@contextmanager
def surviving(device: torch.device, name: str) -> Iterator[None]:
    """Tell an exception after which the device still computes from one after which it does not.

    Raises:
        DeviceLost: the device refuses everything, as it does once a kernel has touched foreign
            memory.
        NoMemory: it computes, but had too little memory.
    """
    try:
        yield
    except Exception as error:
        if _is_lost(device):
            raise DeviceLost(f"the device was lost to {name}: {error}") from error
        if isinstance(error, torch.OutOfMemoryError) or _NO_MEMORY in str(error):
            raise NoMemory(f"too little memory for {name}: {error}") from error
        raise


def _is_lost(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


class GraphClock:
    """Captures the calls into a CUDA graph and times its replays.

    Args:
        device: which device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, calls: Sequence[Callable[[], object]]) -> float:
        """See ``LaunchClock``."""
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        found: list[float] = []
        with torch.cuda.stream(stream):
            # Libraries make handles and workspaces at the first launch, which cannot be captured.
            calls[0]()
            stream.synchronize()
            # Not ``torch.cuda.graph``, which collects garbage and empties the cache each time.
            # A pool lives as long as its graphs, of which none is left of the measurement before.
            pool = torch.cuda.graph_pool_handle()
            graph.capture_begin(pool=pool)
            try:
                for call in calls:
                    call()
            except BaseException:
                end_failed(graph, self._device, pool)
                raise
            graph.capture_end()
            for _ in range(_UNCOUNTED + _REPLAYS):
                begin.record(stream)
                graph.replay()
                end.record(stream)
                end.synchronize()
                found.append(begin.elapsed_time(end) * 1000 / len(calls))
        torch.cuda.current_stream().wait_stream(stream)
        return median(found[_UNCOUNTED:])
