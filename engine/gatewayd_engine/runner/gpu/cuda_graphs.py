"""CUDA graphs of steps, captured for a few padded sizes, whole or piecewise."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from gatewayd_engine.attention.gpu_api import CapturedAttention
from gatewayd_engine.kernels.graph_capture import end_failed
from gatewayd_engine.tuning.table import DeviceLost

_log = logging.getLogger(__name__)

Replay = Callable[[], None]
Between = Callable[[int], object]
"""Launches an uncaptured part; receives its index in the step."""
PiecewiseLaunches = Callable[[Between], None]
"""Launches with uncaptured parts in between, always the same number of them."""
T = TypeVar("T")


class Capture(Protocol):
    """Captures launches into a callable that replays them, always over the same memory.

    The result references the launches, and so what these refer to; of other existing tensors, only
    the addresses are captured. Tensors created by the launches themselves are valid within a replay
    only, and not in the uncaptured parts in between.
    """

    def whole(self, launches: Replay) -> Replay:
        """Capture launches completely, into one graph."""

    def pieces(self, launches: PiecewiseLaunches) -> PiecewiseLaunches:
        """Capture launches except for the parts in between."""


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """Captured decode step of one size, with one of its kinds of attention.

    Attributes:
        attention: attention to plan before each replay.
        forward: forward pass up to the logits.
        whole: forward pass and sampling, for steps whose logits are not processed.
    """

    attention: CapturedAttention
    forward: Replay
    whole: Replay


def sizes(max_lines: int) -> list[int]:
    """Return the captured batch sizes: exact for few sequences, within a few percent for many."""
    finer, coarser = range(8, min(max_lines, 256), 8), range(256, max_lines, 16)
    chosen = {1, 2, 4, *finer, *coarser, max_lines}
    return sorted(size for size in chosen if size <= max_lines)


class Graphs(Generic[T]):
    """Captured steps by size.

    A size whose capture fails is skipped with a warning: its steps are padded to the next larger
    size, or launched kernel by kernel where there is none.

    Args:
        at: sizes to capture.
        make: captures one size.
        progress: receives the fraction that is done.
        steps: description of the steps for the warning; ``%s`` stands for the sizes.
    """

    def __init__(
        self,
        at: Sequence[int],
        make: Callable[[int], T],
        progress: Callable[[float], None],
        steps: str,
    ) -> None:
        self._made: dict[int, T] = {}
        failed: list[int] = []
        # The largest first: others reuse its memory of the shared pool.
        for done, size in enumerate(sorted(at, reverse=True), start=1):
            try:
                self._made[size] = make(size)
            except DeviceLost:
                raise  # the device cannot be used any more
            except Exception as error:  # noqa: BLE001 - of any library; the engine serves without
                if not failed:
                    _log.warning("capture of %s failed", steps % size, exc_info=error)
                failed.append(size)
            progress(done / len(at))
        self._sizes = sorted(self._made)
        if failed:
            _log.warning(
                "steps not captured: %s; they run slower, kernel by kernel or"
                " padded to a larger size",
                steps % ", ".join(map(str, sorted(failed))),
            )

    def size_for(self, num: int) -> int | None:
        """Return the smallest captured size that is at least ``num``; None if there is none."""
        at = bisect_left(self._sizes, num)
        return self._sizes[at] if at < len(self._sizes) else None

    def __getitem__(self, size: int) -> T:
        """Return the captured step of a size."""
        return self._made[size]


class CudaCapture:
    """Captures CUDA graphs that share a memory pool: replays must not overlap.

    Later captures may reuse memory freed in earlier ones, so a replay has to run completely and its
    pieces in order, or be restarted. Results that are read after a replay, or between its pieces,
    have to be written to tensors allocated before the capture.

    Args:
        device: device of the graphs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def whole(self, launches: Replay) -> Replay:
        """See ``Capture``."""
        (graph,) = self._captured(lambda between: launches())
        return _WholeReplay(graph, launches)

    def pieces(self, launches: PiecewiseLaunches) -> PiecewiseLaunches:
        """See ``Capture``."""
        return _PiecesReplay(self._captured(launches), launches)

    def _captured(self, launches: PiecewiseLaunches) -> list[torch.cuda.CUDAGraph]:
        """Capture the launches before, between and after the uncaptured parts."""
        self._rehearse(lambda: launches(lambda _: None))
        graphs: list[torch.cuda.CUDAGraph] = []

        def start_graph() -> None:
            graphs.append(torch.cuda.CUDAGraph())
            graphs[-1].capture_begin(pool=self._pool)

        # All pieces are in one pool, so that a later piece can read what an earlier one has
        # written.
        def cut(_: int) -> None:
            graphs[-1].capture_end()
            start_graph()

        # As in ``torch.cuda.graph``: memory of the warm-up run is available to the capture.
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        # CUDA does not capture on the default stream.
        with torch.cuda.stream(self._stream):
            start_graph()
            try:
                launches(cut)
            except BaseException:
                end_failed(graphs[-1], self._device, self._pool)
                # The pool of a failed capture must not be used again.
                self._pool = torch.cuda.graph_pool_handle()
                raise
            graphs[-1].capture_end()
        return graphs

    def _rehearse(self, launches: Replay) -> None:
        """Run the launches once, so that libraries create handles and kernels are compiled."""
        # Ordered after work that fills the inputs; later work is ordered after this run.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            launches()
        torch.cuda.current_stream().wait_stream(self._stream)


class _WholeReplay:
    """Replay of one graph.

    References the captured launches, as tensors that only these reference must not be freed before.
    """

    __slots__ = ("_launches", "_replay")

    def __init__(self, graph: torch.cuda.CUDAGraph, launches: Replay) -> None:
        self._replay = graph.replay
        self._launches = launches

    def __call__(self) -> None:
        self._replay()


class _PiecesReplay:
    """Replay of graphs with uncaptured parts in between; see ``_WholeReplay``."""

    __slots__ = ("_first", "_launches", "_others")

    def __init__(self, graphs: Sequence[torch.cuda.CUDAGraph], launches: PiecewiseLaunches) -> None:
        self._first, *self._others = [graph.replay for graph in graphs]
        self._launches = launches

    def __call__(self, between: Between) -> None:
        self._first()
        for index, piece in enumerate(self._others):
            between(index)
            piece()


class LaunchEach:
    """``Capture`` that captures nothing: launches run one by one each time."""

    def whole(self, launches: Replay) -> Replay:
        """See ``Capture``."""
        return launches

    def pieces(self, launches: PiecewiseLaunches) -> PiecewiseLaunches:
        """See ``Capture``."""
        return launches
