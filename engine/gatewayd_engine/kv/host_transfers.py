"""Transfers of pages into a pool in host memory, layer by layer during computation, and out of it.

Attention of a layer waits only for that layer's copies, so that all but the first layer's are
hidden behind computation. Copies release the interpreter lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_INLINE_BYTES = 1 << 20
"""Up to this size copies are synchronous: starting a thread would take as long."""


@dataclass(slots=True, eq=False, repr=False)
class HostTransfers:
    """Transfers of a pool in host memory; one thread requests and waits, another copies.

    Args:
        target: the pool's bytes, shape ``[pages, layers, bytes]``.

    Attributes:
        pending: whether there are requests that were not waited for.
        on_copied: called with the number of pages copied and the seconds that took.
        settle: called before pages are read: a step that still computes may write to them.
    """

    _target: NDArray[np.uint8]
    _jobs: list[tuple[int, NDArray[np.uint8]]] = field(default_factory=list)
    _thens: list[Callable[[], None]] = field(default_factory=list)
    _worker: threading.Thread | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _arrived: int = 0
    _ended: bool = False
    _seconds: float = 0.0
    pending: bool = False
    on_copied: Callable[[int, float], None] = lambda pages, seconds: None
    settle: Callable[[], None] = lambda: None

    def add(
        self,
        pages: Sequence[int],
        sources: Sequence[NDArray[np.uint8]],
        then: Callable[[], None],
    ) -> None:
        """Request copies into the pool; ``start`` starts them.

        Args:
            pages: target pages.
            sources: contents of each page; unchanged until the copies have completed.
            then: called on completion, by the waiting thread.
        """
        # A running thread iterates over the requests, which must not change meanwhile.
        if self._worker is not None:
            self.wait()
        shape = self._target.shape[1:]
        self._jobs += [
            (page, source.reshape(shape)) for page, source in zip(pages, sources, strict=True)
        ]
        self._thens.append(then)
        self.pending = True

    def start(self) -> None:
        """Start the requested copies."""
        if not self.pending or self._worker is not None:
            return
        if sum(source.nbytes for _, source in self._jobs) <= _INLINE_BYTES:
            self.wait()
            return
        self._arrived, self._ended = 0, False
        self._worker = threading.Thread(target=self._work, name="kv-transfers", daemon=True)
        self._worker.start()

    def wait_for(self, layer: int) -> None:
        """Wait for one layer of all requested copies, which need not have been started."""
        # Copies that have not been started are made here. With the last layer all have arrived, and
        # their callbacks are due.
        if self._worker is None or layer + 1 == self._target.shape[1]:
            self.wait()
            return
        with self._changed:
            self._changed.wait_for(lambda: self._arrived > layer or self._ended)
        # The thread has failed: this raises.
        if self._arrived <= layer:
            self.wait()

    def wait(self) -> None:
        """Wait for all requested copies.

        Raises:
            RuntimeError: a copy failed: the contents of the pool are undefined.
        """
        if not self.pending:
            return
        if self._worker is None:
            self._copy()
        else:
            self._worker.join()
            if self._arrived < self._target.shape[1]:
                raise RuntimeError("pages were not copied into the pool")
        self.on_copied(len(self._jobs), self._seconds)
        # Reset before the callbacks: one that raises must leave no stale requests behind.
        thens = self._thens
        self._jobs, self._thens, self._worker = [], [], None
        self.pending = False
        for then in thens:
            then()

    def copy_out(self, pages: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Copy pages to the host, so that they can be reused; ``add`` copies them back."""
        self.wait()
        self.settle()
        began = time.perf_counter()
        # Indexing with a list copies, so the pages may be overwritten afterwards.
        copy = self._target[pages].reshape(len(pages), -1)
        self.on_copied(len(pages), time.perf_counter() - began)
        return list(copy)

    def send_out(self, page: int, then: Callable[[NDArray[np.uint8]], None]) -> None:
        """Pass a page that is about to be reused to a callback, which copies it."""
        then(self.read(page))

    def read(self, page: int) -> NDArray[np.uint8]:
        """Return a page's bytes, valid until the page is written to."""
        self.settle()
        found: NDArray[np.uint8] = self._target[page].reshape(-1)
        return found

    def flush(self) -> None:
        """Wait until all copies have completed, in and out."""
        self.wait()

    def _work(self) -> None:
        try:
            self._copy()
        finally:
            # Also after an error, or attention would wait forever.
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _copy(self) -> None:
        began = time.perf_counter()
        for layer in range(self._target.shape[1]):
            # Layer by layer over all pages, in the order in which attention waits for them.
            for page, source in self._jobs:
                np.copyto(self._target[page, layer], source[layer])
            self._seconds = time.perf_counter() - began
            with self._changed:
                self._arrived = layer + 1
                self._changed.notify_all()
