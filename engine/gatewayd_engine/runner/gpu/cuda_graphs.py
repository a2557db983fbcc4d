"""What is launched all at once: captured for each of a few padded sizes, whole or in pieces."""

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
"""Launches what is not captured, told how many times that was done before."""
Broken = Callable[[Between], None]
"""Launches that call another in between, each time equally often."""
T = TypeVar("T")


class Capture(Protocol):
    """Takes launches and gives what launches them all at once, over the same memory each time.

    What is given keeps the launches, and so what these refer to; of other tensors that were there
    before, only the addresses are kept. What launches make themselves has numbers within a replay
    alone, and not for what is called in between.
    """

    def whole(self, launches: Replay) -> Replay:
        """Capture launches of which none is missing."""

    def pieces(self, launches: Broken) -> Broken:
        """Capture launches but for what is called in between."""


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """The decode step of one size, with one of its kinds of attention.

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


class Graphs(Generic[T]):
    """What is captured, by size.

    A size whose capture fails is left out with a warning: its steps are padded to the next larger
    size, or launched kernel by kernel where there is none.

    Args:
        at: the sizes.
        make: captures one.
        progress: told the fraction that is made.
        steps: what is captured, for the warning; ``%s`` stands for the sizes.
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
        # The largest first: what it takes of the memory that they share, others use again.
        for done, size in enumerate(sorted(at, reverse=True), start=1):
            try:
                self._made[size] = make(size)
            except DeviceLost:
                raise  # nothing can be computed any more
            except Exception as error:  # noqa: BLE001 - of any library; the engine serves without
                if not failed:
                    _log.warning("capture of %s failed", steps % size, exc_info=error)
                failed.append(size)
            progress(done / len(at))
        self._sizes = sorted(self._made)
        if failed:
            _log.warning(
                "not captured: %s; they take longer, kernel by kernel or padded to a larger size",
                steps % ", ".join(map(str, sorted(failed))),
            )

    def size_for(self, num: int) -> int | None:
        """The smallest size that is enough for so many; None if there is none."""
        at = bisect_left(self._sizes, num)
        return self._sizes[at] if at < len(self._sizes) else None

    def __getitem__(self, size: int) -> T:
        """What was made for a size."""
        return self._made[size]


class CudaCapture:
    """Captures into CUDA graphs that share their memory: no two replays run at a time.

    What is captured later may use the memory of what was let go before, so a replay must come
    whole and its pieces in their order, or be begun anew. What is read after it, or in between, is
    to be written to tensors that were there before.

    Args:
        device: which device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def whole(self, launches: Replay) -> Replay:
        """See ``Capture``."""
        (graph,) = self._captured(lambda between: launches())
        return _WholeReplay(graph, launches)

    def pieces(self, launches: Broken) -> Broken:
        """See ``Capture``."""
        return _PiecesReplay(self._captured(launches), launches)

    def _captured(self, launches: Broken) -> list[torch.cuda.CUDAGraph]:
        """Capture what is launched before, between and after the calls of another."""
        self._rehearse(lambda: launches(lambda _: None))
        graphs: list[torch.cuda.CUDAGraph] = []

        def begin() -> None:
            graphs.append(torch.cuda.CUDAGraph())
            graphs[-1].capture_begin(pool=self._pool)

        def cut(_: int) -> None:
            graphs[-1].capture_end()
            begin()

        # As ``torch.cuda.graph`` does it: what was rehearsed with is free for the capture.
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        with torch.cuda.stream(self._stream):
            begin()
            try:
                launches(cut)
            except BaseException:
                end_failed(graphs[-1], self._device, self._pool)
                self._pool = torch.cuda.graph_pool_handle()
                raise
            graphs[-1].capture_end()
        return graphs

    def _rehearse(self, launches: Replay) -> None:
        """Libraries make their handles and kernels are compiled when they are first launched."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            launches()
        torch.cuda.current_stream().wait_stream(self._stream)


class _WholeReplay:
    """Replays a graph.

    It keeps what was captured: tensors of which only the launches know have to live as long.
    """

    __slots__ = ("_launches", "_replay")

    def __init__(self, graph: torch.cuda.CUDAGraph, launches: Replay) -> None:
        self._replay = graph.replay
        self._launches = launches

    def __call__(self) -> None:
        self._replay()


class _PiecesReplay:
    """The same of graphs with calls in between."""

    __slots__ = ("_first", "_launches", "_others")

    def __init__(self, graphs: Sequence[torch.cuda.CUDAGraph], launches: Broken) -> None:
        self._first, *self._others = [graph.replay for graph in graphs]
        self._launches = launches

    def __call__(self, between: Between) -> None:
        self._first()
        for index, piece in enumerate(self._others):
            between(index)
            piece()


class LaunchEach:
    """No capture: launches one after the other, each time."""

    def whole(self, launches: Replay) -> Replay:
        """See ``Capture``."""
        return launches

    def pieces(self, launches: Broken) -> Broken:
        """See ``Capture``."""
        return launches
