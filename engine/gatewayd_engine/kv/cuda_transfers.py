"""Asynchronous transfers of pages between a GPU's pool and the host, on a separate stream.

Later computation is ordered after the copies by an event; the host only polls, once a step, which
copies have completed. The counterpart of ``HostTransfers``, which is for a CPU.

A page is copied whole, because it is contiguous on both sides, and attention waits for all layers
of all pages. A page of Llama 3.1 8B, 16 tokens of 128 KiB, takes some 40 us on a link of 55 GB/s,
and about 5 us of host time to enqueue: enqueueing each of 32 layers separately would take the host
four times as long as the copy itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Copy = tuple[torch.Tensor, torch.Tensor]
"""Target and source."""


@dataclass(frozen=True, slots=True)
class _Transfer:
    """Copies that were enqueued together.

    Attributes:
        began, ended: events around them.
        copies: of a page each; the host memory must stay alive until they have completed.
        thens: callbacks on completion.
    """

    began: torch.cuda.Event
    ended: torch.cuda.Event
    copies: list[Copy]
    thens: list[Callable[[], None]]


class CudaTransfers:
    """Transfers of a pool in GPU memory, like ``HostTransfers``; used by one thread.

    Copies are made in the order of the requests, in and out: a page may be copied out and
    overwritten by an incoming one in the same step.

    Args:
        target: the pool's bytes, shape ``[pages, layers, bytes]``.

    Attributes:
        on_copied: called with the number of pages copied and the seconds that took.
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
        """Whether there are requests to be enqueued before the next launch."""
        return bool(self._copies or self._thens)

    def add(
        self,
        pages: Sequence[int],
        sources: Sequence[NDArray[np.uint8]],
        then: Callable[[], None],
    ) -> None:
        """Request copies into the pool; see ``HostTransfers``."""
        for page, source in zip(pages, sources, strict=True):
            self._copies.append((self._pages[page], _pinned(source)))
        self._thens.append(then)

    def copy_out(self, pages: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Request copies to the host; only ``add`` may read them before they have completed."""
        hosts = [_host(self._pages.shape[1]) for _ in pages]
        # Only enqueued: copies back into the pool follow on the same stream.
        self._copies += [(host, self._pages[page]) for page, host in zip(pages, hosts, strict=True)]
        return [host.numpy() for host in hosts]

    def send_out(self, page: int, then: Callable[[NDArray[np.uint8]], None]) -> None:
        """Request the copy of a page to the host, and pass it to a callback on completion."""
        (found,) = self.copy_out([page])
        self._thens.append(lambda: then(found))

    def start(self) -> None:
        """Enqueue the requested copies between the computation before and after."""
        if not self.pending:
            return
        now = torch.cuda.current_stream(self._pages.device)
        done = _Transfer(_event(), _event(), self._copies, self._thens)
        # Enqueued kernels may still read these pages, or write those to be copied out.
        self._stream.wait_stream(now)
        with torch.cuda.stream(self._stream):
            done.began.record()
            for to, source in done.copies:
                _copy(to, source)
            done.ended.record()
        # Later kernels read the copied pages, and overwrite those copied out.
        now.wait_event(done.ended)
        self._transfers.append(done)
        self._copies, self._thens = [], []

    def wait_for(self, layer: int) -> None:
        """Order later work after all copies; layers are not copied separately."""
        self.start()

    def wait(self) -> None:
        """Order later work after all copies, and report those that have completed."""
        self.start()
        # They complete in order.
        while self._transfers and self._transfers[0].ended.query():  # type: ignore[no-untyped-call]
            done = self._transfers.pop(0)
            if done.copies:
                self.on_copied(len(done.copies), done.began.elapsed_time(done.ended) / 1000)
            for then in done.thens:
                then()

    def flush(self) -> None:
        """Wait until all copies have completed."""
        self.start()
        self._stream.synchronize()
        self.wait()

    def read(self, page: int) -> NDArray[np.uint8]:
        """Return a page's bytes; synchronises with the GPU."""
        found: NDArray[np.uint8] = self._pages[page].cpu().numpy()
        return found


def _copy(to: torch.Tensor, source: torch.Tensor) -> None:
    """Copy asynchronously; both sides are contiguous, so torch needs no intermediate copy."""
    to.copy_(source, non_blocking=True)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _host(num_bytes: int) -> torch.Tensor:
    """Allocate pinned memory, which allows asynchronous copies."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def _pinned(source: NDArray[np.uint8]) -> torch.Tensor:
    """Return the bytes in contiguous pinned memory, copying those of a tier if necessary."""
    source = source.reshape(-1)
    if source.flags.writeable:
        # Swapped pages come back in the pinned memory of `copy_out`, without another copy.
        tensor = torch.from_numpy(source)
        if tensor.is_pinned():
            return tensor
    host = _host(source.size)
    np.copyto(host.numpy(), source)
    return host
