"""Simulated CUDA streams on a CPU: work runs as late or as early as waits allow.

Copies and computing are queued, and done when somebody says in which order. A wait that is missing
shows as wrong bytes; memory of the host that went too soon fails by itself.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterator

import pytest
import torch

from gatewayd_engine.kv import cuda_transfers


class Event:
    """Has happened once a stream has come to it."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.has_happened = False

    def record(self) -> None:
        self._gpu.now.do(self._happen)

    def query(self) -> bool:
        return self.has_happened

    def elapsed_time(self, other: Event) -> float:
        assert self.has_happened
        assert other.has_happened
        return 2000.0

    def _happen(self) -> None:
        self.has_happened = True


class Stream:
    """Work in the order in which it was queued."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._work: deque[Callable[[], None] | Event] = deque()
        gpu.streams.append(self)

    def do(self, work: Callable[[], None]) -> None:
        """Queue some work; the stream that computes has none waiting if it is done at once."""
        if self is self._gpu.main and self._gpu.computes_at_once:
            work()
        else:
            self._work.append(work)

    def wait_event(self, event: Event) -> None:
        self._work.append(event)
        if self is self._gpu.main and self._gpu.computes_at_once:
            self.synchronize()

    def wait_stream(self, other: Stream) -> None:
        event = Event(self._gpu)
        other.do(event._happen)
        self.wait_event(event)

    def synchronize(self) -> None:
        while self._work:
            if not self.advance():
                assert any([other.advance() for other in self._gpu.streams if other is not self])

    def advance(self) -> bool:
        """Do what is next; whether there was anything that waits for nobody."""
        if not self._work:
            return False
        work = self._work[0]
        if isinstance(work, Event):
            if not work.has_happened:
                return False
            self._work.popleft()
        else:
            self._work.popleft()
            work()
        return True


class Gpu:
    """Two streams: on one is computed, on the other copied.

    Attributes:
        computes_at_once: whether what is computed is not queued; copies still come as late as they
            may.
        streams: all of them.
        main: on which is computed.
        now: on which is queued.
    """

    def __init__(self, patch: pytest.MonkeyPatch, *, computes_at_once: bool) -> None:
        self.computes_at_once = computes_at_once
        self.streams: list[Stream] = []
        self.main = self.now = Stream(self)
        patch.setattr(torch.cuda, "Stream", lambda device: Stream(self))
        patch.setattr(cuda_transfers, "_event", lambda: Event(self))
        patch.setattr(torch.cuda, "stream", self._on)
        patch.setattr(torch.cuda, "current_stream", lambda device: self.now)
        patch.setattr(cuda_transfers, "_copy", self._copy)
        patch.setattr(
            cuda_transfers, "_host", lambda size: torch.full((size,), 171, dtype=torch.uint8)
        )
        patch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)

    @contextlib.contextmanager
    def _on(self, stream: Stream) -> Iterator[None]:
        before, self.now = self.now, stream
        yield
        self.now = before

    def _copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        assert to.is_contiguous()
        assert source.is_contiguous()
        ends = weakref.ref(to), weakref.ref(source)

        def copy() -> None:
            to, source = ends[0](), ends[1]()
            assert to is not None, "memory went before its copy was done"
            assert source is not None, "memory went before its copy was done"
            to.copy_(source)

        self.now.do(copy)

    def run(self, choose: Callable[[int], int], limit: int = 1 << 30) -> None:
        """Do what is queued, up to a number of pieces of work.

        Args:
            choose: which of so many streams comes next, if it can.
            limit: of pieces.
        """
        while limit:
            first = choose(len(self.streams))
            order = self.streams[first:] + self.streams[:first]
            if not any(stream.advance() for stream in order):
                assert not any(stream._work for stream in self.streams), "all wait for each other"
                return
            limit -= 1
