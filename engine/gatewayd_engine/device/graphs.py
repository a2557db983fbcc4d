"""Decode steps that are launched as a whole: captured once for each of a few padded sizes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gatewayd_engine.attention.device import CapturedAttention

Replay = Callable[[], None]
Capture = Callable[[Replay], Replay]
"""Takes launches and gives what launches them all at once."""


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """The decode step of one size.

    Attributes:
        attention: planned before each replay.
        forward: up to the logits.
        whole: the same, and what follows when nobody has to look at the logits.
    """

    attention: CapturedAttention
    forward: Replay
    whole: Replay


def sizes(max_lines: int) -> list[int]:
    """Sizes that are captured: few sequences exactly, many within a few percent."""
    finer, coarser = range(8, min(max_lines, 256), 8), range(256, max_lines, 16)
    chosen = {1, 2, 4, *finer, *coarser, max_lines}
    return sorted(size for size in chosen if size <= max_lines)


class Graphs:
    """Captured steps by size.

    Args:
        at: the sizes, ascending.
        make: makes the step of a size.
        progress: told the fraction that is made.
    """

    def __init__(
        self,
        at: Sequence[int],
        make: Callable[[int], CapturedStep],
        progress: Callable[[float], None],
    ) -> None:
        self._sizes = sorted(at)
        self._steps: dict[int, CapturedStep] = {}
        # The largest first: what it takes of the memory that they share, others use again.
        for done, size in enumerate(reversed(self._sizes), start=1):
            self._steps[size] = make(size)
            progress(done / len(self._sizes))

    def size_for(self, lines: int) -> int | None:
        """The smallest size with so many lines; None if there is none."""
        at = bisect_left(self._sizes, lines)
        return self._sizes[at] if at < len(self._sizes) else None

    def __getitem__(self, size: int) -> CapturedStep:
        """The step of a size."""
        return self._steps[size]


def cuda_capture(device: torch.device) -> Capture:
    """Capture into CUDA graphs that share their memory: only one of them runs at a time."""
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(launches: Replay) -> Replay:
        # Libraries make their handles and kernels are compiled when they are first launched.
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            launches()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            launches()
        replay: Replay = graph.replay
        return replay

    return capture


def launch_each(launches: Replay) -> Replay:
    """No capture: launch one after the other, each time."""
    return launches
