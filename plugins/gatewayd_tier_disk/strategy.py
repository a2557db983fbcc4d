"""Pages on disk: one thread writes behind, another reads ahead; no call waits for the device."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np

from gatewayd_tier_disk.store import Store

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources
    from gatewayd_tier_disk.config import DiskConfig

_log = logging.getLogger(__name__)
_CLOSE_SECONDS = 1.5
"""How long ``close`` waits for what is still to be written; then it is written behind its back, for
as long as the process lives. Less than strategies get before they count as hung."""
_LATEST = 0.1
"""Of what a page takes, the weight of the latest one."""
_LOGGED = 1000
"""One in so many failures of the device is logged."""


class Disk:
    """Pages in files, pages that wait to be written, and pages that were read ahead.

    Dictionaries are changed by one thread each where that matters, and single operations on them
    are atomic: ``_writing`` grows by ``put`` and shrinks by the writer, ``_ahead`` grows by the
    reader and by ``ready``, and shrinks by whoever asks, who is one thread. Theirs alone is
    ``_had``: of what is ahead the pages that were given, and that nobody has asked about since.

    Attributes:
        dropped: pages that were not written: too many waited, or the device failed.
    """

    def __init__(self, config: DiskConfig) -> None:
        self._path = config.path
        self._size = int(config.size)
        self._memory = int(config.memory)
        self._store: Store | None = None
        self._writing: dict[bytes, NDArray[np.uint8]] = {}
        self._ahead: OrderedDict[bytes, NDArray[np.uint8]] = OrderedDict()
        self._had: dict[bytes, None] = {}
        self._fetching: dict[bytes, None] = {}
        self._to_write: SimpleQueue[bytes | threading.Event | None] = SimpleQueue()
        self._to_read: SimpleQueue[bytes | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._most = 0
        self._failures = 0
        self._page_seconds = 0.0
        self.dropped = 0

    def open(self, resources: EngineResources) -> None:
        """Take this engine's folder and find what is in it.

        Engines of one daemon share no pages: each finds what it has written, and the router sends
        it the prompts that begin with it.

        Raises:
            ValueError: no folder is named, or another process has it.
            OSError: it cannot be used.
        """
        if not self._path:
            raise ValueError("[kv_tier.disk] path is not set; it names a folder for pages")
        self._most = max(1, self._memory // resources.page_bytes)
        root = Path(self._path).expanduser()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._store = Store(root / f"engine-{resources.replica}", self._size)
        for name, work in (("writer", self._write), ("reader", self._read)):
            thread = threading.Thread(
                target=work, args=(self._store,), name=f"kv-disk-{name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Write what waits, and give the folder back."""
        store, self._store = self._store, None
        if store is None:
            return
        self._to_read.put(None)
        self._to_write.put(None)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            _log.warning(
                "KV tier closed before pending writes finished: the disk of %s is slow", self._path
            )

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until everything that was put is written, and kept by the device.

        Args:
            seconds: for which to wait; None for as long as it takes.

        Returns:
            Whether it is.
        """
        done = threading.Event()
        self._to_write.put(done)
        return done.wait(seconds)

    # What the engine asks

    def find(self, keys: Sequence[bytes]) -> int:
        """See ``KvTierStrategy``."""
        store, writing = self._opened, self._writing
        for i, key in enumerate(keys):
            name = store.name(key)
            # Before the store: it is there by the time it is not here any more.
            if name not in writing and name not in store:
                return i
        return len(keys)

    def put(self, key: bytes, page: NDArray[np.uint8]) -> Sequence[tuple[bytes, NDArray[np.uint8]]]:
        """See ``KvTierStrategy``; while too many pages wait to be written, it is dropped."""
        name = self._opened.name(key)
        if name in self._writing or name in self._opened:
            return []
        if len(self._writing) >= self._most:
            self.dropped += 1
            return []
        self._writing[name] = page.copy()
        self._to_write.put(name)
        return []

    def get(self, keys: Sequence[bytes]) -> Sequence[NDArray[np.uint8]]:
        """See ``KvTierStrategy``; these arrays are never written to again."""
        found = []
        for key in keys:
            name = self._opened.name(key)
            page = self._at_hand(name)
            if page is None:
                break
            if name in self._ahead:
                self._had[name] = None
            found.append(page)
        return found

    def release(self, keys: Sequence[bytes]) -> None:
        """See ``KvTierStrategy``; nothing was pinned."""

    def keep(self, pages: Iterable[tuple[bytes, NDArray[np.uint8]]], seconds: float) -> None:
        """See ``Outlives``; no more than fit beside each other."""
        deadline = time.monotonic() + seconds
        store = self._opened
        for key, page in pages:
            left = deadline - time.monotonic()
            if left <= 0 or len(store.spared) >= store.room(page.nbytes):
                break
            # Before it is looked for: what is written now must not push it out.
            store.spared.add(store.name(key))
            if self.find([key]):
                continue
            if len(self._writing) >= self._most and not self.flush(left):
                break
            self.put(key, page)
        self.flush(max(0.0, deadline - time.monotonic()))

    def __len__(self) -> int:
        store = self._opened
        return len(store) + sum(name not in store for name in list(self._writing))

    def fetch(self, keys: Sequence[bytes]) -> None:
        """See ``Fetches``; pages read for others, or behind these, may have to make room."""
        wanted: set[bytes] = set()
        for name in map(self._opened.name, keys):
            wanted.add(name)
            self._had.pop(name, None)
            if self._at_hand(name) is not None or name in self._fetching:
                continue
            if not self._has_room() and not self._makes_room(wanted):
                return
            self._fetching[name] = None
            self._to_read.put(name)

    def page_seconds(self) -> float:
        """See ``Fetches``."""
        return self._page_seconds

    def ready(self, keys: Sequence[bytes]) -> int:
        """See ``Fetches``; what is counted stays at hand when the writer is through with it.

        To ask takes nothing from others: what they may wait for stays, and a page that waits to be
        written is not counted where there is no room to hold it.
        """
        names = [self._opened.name(key) for key in keys]
        for name in names:
            self._had.pop(name, None)
        for i, name in enumerate(names):
            if name in self._ahead:
                continue
            page = self._writing.get(name)
            if page is None or not self._has_room():
                return i
            self._ahead[name] = page
        return len(keys)

    def _has_room(self) -> bool:
        """Whether another page can be held ahead; one that was given makes room."""
        if len(self._ahead) + len(self._fetching) < self._most:
            return True
        if not self._had:
            return False
        name = next(iter(self._had))
        del self._had[name], self._ahead[name]
        return True

    def _makes_room(self, wanted: set[bytes]) -> bool:
        """Whether a page that others may wait for, and that is not wanted, makes room."""
        other = next((name for name in list(self._ahead) if name not in wanted), None)
        if other is None:
            return False
        del self._ahead[other]
        return True

    @property
    def _opened(self) -> Store:
        if self._store is None:
            raise RuntimeError("the tier is not open")
        return self._store

    def _at_hand(self, name: bytes) -> NDArray[np.uint8] | None:
        page = self._writing.get(name)
        return self._ahead.get(name) if page is None else page

    # Threads

    def _write(self, store: Store) -> None:
        """Write pages in the order they came, and give the folder back after the last one."""
        while (item := self._to_write.get()) is not None:
            if isinstance(item, threading.Event):
                self._guarded(store.sync)
                item.set()
                continue
            page = self._writing[item]
            if not self._guarded(lambda name=item, page=page: store.append(name, page.data)):  # type: ignore[misc]
                self.dropped += 1
            del self._writing[item]
        self._guarded(store.sync)
        store.close()

    def _read(self, store: Store) -> None:
        """Read pages ahead."""
        while (name := self._to_read.get()) is not None:

            def read(name: bytes = name) -> None:
                began = time.perf_counter()
                page = store.read(name)
                took = time.perf_counter() - began
                before = self._page_seconds
                self._page_seconds = took if not before else before + (took - before) * _LATEST
                if page is not None:
                    self._ahead[name] = np.frombuffer(page, np.uint8)

            self._guarded(read)
            self._fetching.pop(name, None)

    def _guarded(self, work: Callable[[], None]) -> bool:
        """Do something with the device; whether it went well."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a thread that ends would stop the tier
            if self._failures % _LOGGED == 0:
                _log.warning("KV tier: the disk of %s failed: %s", self._path, error)
            self._failures += 1
            return False
        return True
