"""Pages between a GPU's pool and the host: on a stream of their own, and nobody waits for them.

What is computed afterwards is queued behind the copies, by an event; the host only looks, once a
step, which copies have ended. In place of ``arrivals``, which is for a CPU.

A page is copied whole, for it lies in one piece on both sides, and whoever attends waits for all
layers of all pages. One of the shape of Llama 3.1 8B, 16 tokens of 128 KiB, takes a link of 55 GB/s
some 40 us, and the host about 5 us to ask for: 32 layers, each by itself, would take the host four
times as long to ask for as the link to copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Copy = tuple[torch.Tensor, torch.Tensor]
"""Where to, and from where."""


@dataclass(frozen=True, slots=True)
class _Transfer:
    """Copies that were queued together.

    Attributes:
        began, ended: events around them.
        copies: of a page each; the host's memory must not go before they have ended.
        thens: called when they have.
    """

    began: torch.cuda.Event
    ended: torch.cuda.Event
    copies: list[Copy]
    thens: list[Callable[[], None]]


class CudaArrivals:
    """What ``HostTransfers`` is for a pool on a CPU; one thread uses it.

    Copies are made in the order in which they were asked for, in and out: a page may leave and
    another come to its place in one breath.

    Args:
        target: the pool's bytes, shape ``[pages, layers, bytes]``.

    Attributes:
        on_copied: told how many pages were copied and the seconds that took.
    """

    def __init__(self, target: torch.Tensor) -> None:
        self._pages = target.flatten(1)
        self._stream = torch.cuda.Stream(target.device)  # type: ignore[no-untyped-call]
        self._copies: list[Copy] = []
        self._thens: list[Callable[[], None]] = []
        self._transfers: list[_Transfer] = []
        self.on_copied: Callable[[int, float], None] = lambda pages, seconds: None

    @property
    def pending(self) -> bool:
        """Whether anything was asked for that is not queued, and must be before the next launch."""
        return bool(self._copies or self._thens)

    def add(
        self,
        pages: Sequence[int],
        sources: Sequence[NDArray[np.uint8]],
        then: Callable[[], None],
    ) -> None:
        """Let pages come; see ``HostTransfers``."""
        for page, source in zip(pages, sources, strict=True):
            self._copies.append((self._pages[page], _pinned(source)))
        self._thens.append(then)

    def take_out(self, pages: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Let pages go to the host; only ``add`` may read them before they are there."""
        hosts = [_host(self._pages.shape[1]) for _ in pages]
        self._copies += [(host, self._pages[page]) for page, host in zip(pages, hosts, strict=True)]
        return [host.numpy() for host in hosts]

    def leave(self, page: int, then: Callable[[NDArray[np.uint8]], None]) -> None:
        """Let a page go to the host, and hand it on once it is there."""
        (found,) = self.take_out([page])
        self._thens.append(lambda: then(found))

    def start(self) -> None:
        """Queue what was asked for, between what is computed before and after."""
        if not self.pending:
            return
        now = torch.cuda.current_stream(self._pages.device)
        done = _Transfer(_event(), _event(), self._copies, self._thens)
        # What is queued already may read what these pages held before, or write what leaves.
        self._stream.wait_stream(now)
        with torch.cuda.stream(self._stream):
            done.began.record()
            for to, source in done.copies:
                _copy(to, source)
            done.ended.record()
        # What follows reads what has come, and writes over what has left.
        now.wait_event(done.ended)
        self._transfers.append(done)
        self._copies, self._thens = [], []

    def wait_for(self, layer: int) -> None:
        """Queue what follows behind everything: a layer does not come by itself."""
        self.start()

    def wait(self) -> None:
        """Queue what follows behind everything, and tell of copies that have ended."""
        self.start()
        # They end in the order in which they began.
        while self._transfers and self._transfers[0].ended.query():  # type: ignore[no-untyped-call]
            done = self._transfers.pop(0)
            if done.copies:
                self.on_copied(len(done.copies), done.began.elapsed_time(done.ended) / 1000)
            for then in done.thens:
                then()

    def flush(self) -> None:
        """Wait until every copy has ended."""
        self.start()
        self._stream.synchronize()
        self.wait()

    def read(self, page: int) -> NDArray[np.uint8]:
        """A page's bytes; waits for the GPU."""
        found: NDArray[np.uint8] = self._pages[page].cpu().numpy()
        return found


def _copy(to: torch.Tensor, source: torch.Tensor) -> None:
    """One copy in one piece: neither side has gaps, so torch makes no other one on the way."""
    to.copy_(source, non_blocking=True)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _host(num_bytes: int) -> torch.Tensor:
    """Pinned memory: the GPU copies from and to it while the host goes on."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def _pinned(source: NDArray[np.uint8]) -> torch.Tensor:
    """The same bytes in pinned memory, in a row; a tier may have them in any, and any shape."""
    source = source.reshape(-1)
    if source.flags.writeable:
        tensor = torch.from_numpy(source)
        if tensor.is_pinned():
            return tensor
    host = _host(source.size)
    np.copyto(host.numpy(), source)
    return host
