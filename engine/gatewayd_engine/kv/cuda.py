"""Pages between a GPU's pool and the host: on a stream of their own, and nobody waits for them.

What is computed afterwards is queued behind the copies it depends on, by events. The host only
looks, once a step, which copies have ended. In place of ``arrivals``, which is for a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class _Transfer:
    """Copies that were queued together.

    Attributes:
        began, ended: events around them.
        num_pages: how many.
        hosts: the host's side, which must not go before they have ended.
        then: called when they have.
    """

    began: torch.cuda.Event
    ended: torch.cuda.Event
    num_pages: int
    hosts: list[torch.Tensor]
    then: Callable[[], None]


class CudaArrivals:
    """What ``Arrivals`` is for a pool on a CPU; one thread uses it.

    Args:
        target: the pool's bytes, shape ``[pages, layers, bytes]``.

    Attributes:
        pending: whether anything was added that nobody has waited for.
        on_copied: told how many pages were copied and the seconds that took.
    """

    def __init__(self, target: torch.Tensor) -> None:
        self._target = target
        self._stream = torch.cuda.Stream(target.device)  # type: ignore[no-untyped-call]
        self._jobs: list[tuple[int, NDArray[np.uint8]]] = []
        self._thens: list[Callable[[], None]] = []
        self._layers: list[torch.cuda.Event] = []
        self._transfers: list[_Transfer] = []
        self.pending = False
        self.on_copied: Callable[[int, float], None] = lambda pages, seconds: None

    # In

    def add(
        self,
        pages: Sequence[int],
        sources: Sequence[NDArray[np.uint8]],
        then: Callable[[], None],
    ) -> None:
        """Let pages come; see ``Arrivals``."""
        if self._layers:
            self.wait()
        self._jobs += zip(pages, sources, strict=True)
        self._thens.append(then)
        self.pending = True

    def start(self) -> None:
        """Queue the copies of what was added, layer by layer."""
        if not self.pending or self._layers:
            return
        shape = tuple(self._target.shape[1:])
        hosts = [_pinned(source).view(shape) for _, source in self._jobs]
        began, ended = _event(), _event()
        # Kernels that are queued already may read what these pages held before.
        self._stream.wait_stream(self._now)
        with torch.cuda.stream(self._stream):
            began.record()
            for layer in range(shape[0]):
                for (page, _), host in zip(self._jobs, hosts, strict=True):
                    self._target[page, layer].copy_(host[layer], non_blocking=True)
                self._layers.append(_event())
                self._layers[-1].record()
            ended.record()
        thens = self._thens

        def release() -> None:
            for then in thens:
                then()

        self._transfers.append(_Transfer(began, ended, len(hosts), hosts, release))
        self._jobs, self._thens = [], []

    def wait_for(self, layer: int) -> None:
        """Queue what follows behind one layer of all that was added."""
        self.start()
        if self._layers:
            self._now.wait_event(self._layers[layer])
        if layer + 1 == self._target.shape[1]:
            self._forget()

    def wait(self) -> None:
        """Queue what follows behind everything, and see what has ended."""
        self.start()
        if self._layers:
            self._now.wait_event(self._layers[-1])
        self._forget()
        self._see()

    def _forget(self) -> None:
        self._layers = []
        self.pending = False

    # Out

    def take_out(self, pages: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Copy pages to the host; only ``add`` may read them before the copies have ended."""
        self.wait()
        return self._take(pages, lambda hosts: None)

    def leave(self, page: int, then: Callable[[NDArray[np.uint8]], None]) -> None:
        """Copy a page to the host, and hand it on once it is there."""
        self._take([page], lambda hosts: then(hosts[0]))

    def _take(
        self, pages: Sequence[int], then: Callable[[list[NDArray[np.uint8]]], None]
    ) -> list[NDArray[np.uint8]]:
        hosts = [_host(self._target[0].numel()) for _ in pages]
        shape = self._target.shape[1:]
        began, ended = _event(), _event()
        self._stream.wait_stream(self._now)
        with torch.cuda.stream(self._stream):
            began.record()
            for page, host in zip(pages, hosts, strict=True):
                host.view(shape).copy_(self._target[page], non_blocking=True)
            ended.record()
        # Who gets these pages writes to them after they were read.
        self._now.wait_event(ended)
        found = [host.numpy() for host in hosts]
        self._transfers.append(_Transfer(began, ended, len(hosts), hosts, lambda: then(found)))
        return found

    def read(self, page: int) -> NDArray[np.uint8]:
        """A page's bytes; waits for the GPU."""
        found: NDArray[np.uint8] = self._target[page].cpu().numpy().reshape(-1)
        return found

    def flush(self) -> None:
        """Wait until every copy has ended."""
        self.wait()
        self._stream.synchronize()
        self._see()

    def _see(self) -> None:
        """Tell of copies that have ended; they end in the order in which they began."""
        while self._transfers and self._transfers[0].ended.query():  # type: ignore[no-untyped-call]
            done = self._transfers.pop(0)
            self.on_copied(done.num_pages, done.began.elapsed_time(done.ended) / 1000)
            done.then()

    @property
    def _now(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._target.device)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _host(num_bytes: int) -> torch.Tensor:
    """Pinned memory: the GPU copies from and to it while the host goes on."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def _pinned(source: NDArray[np.uint8]) -> torch.Tensor:
    """The same bytes in pinned memory; a tier may have them in any."""
    if source.flags.writeable:
        tensor = torch.from_numpy(source)
        if tensor.is_pinned():
            return tensor
    host = _host(source.size)
    np.copyto(host.numpy(), source)
    return host
