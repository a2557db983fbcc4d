"""KV tier on disk: one thread writes back, another reads ahead; no call waits for the device."""

from __future__ import annotations

import hashlib
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
"""How long ``close`` waits for pending writes; they then continue in the background, as long as the
process runs. Less than the time after which strategies count as hung."""
_LATEST = 0.1
"""Weight of the latest measurement in a page's read time."""
_LOGGED = 1000
"""One in this many device failures is logged."""


def _folder(resources: EngineResources) -> str:
    """Name of the folder of an engine; those of further models of a daemon contain the model's."""
    name, engine = resources.model, f"engine-{resources.replica}"
    if not name:
        return engine
    # Names may have slashes, and be equal without them: the digest distinguishes them.
    shown = "".join(char if char.isalnum() and char.isascii() else "_" for char in name[:48])
    digest = hashlib.blake2b(name.encode(), digest_size=6).hexdigest()
    return f"{engine}-{shown}-{digest}"


class Disk:
    """Pages in files, pages waiting to be written, and pages read ahead.

    Dictionaries are changed by one thread each where that matters, and single operations on them
    are atomic: ``_writing`` is filled by ``put`` and emptied by the writer, ``_ahead`` is filled by
    the reader and by ``ready``, and emptied by the calling thread. ``_had`` is only used by that
    thread: pages read ahead that were returned, and not asked for since.

    Attributes:
        dropped: number of pages not written: too many were waiting, or the device failed.
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
        """Lock this engine's folder and index its pages.

        Engines of one daemon share no pages: each finds what it has written, and the router sends
        it the prompts with these prefixes.

        Raises:
            ValueError: no folder is configured, or another process uses it.
            OSError: it cannot be used.
        """
        if not self._path:
            raise ValueError("[kv_tier.disk] path is not set; it must name a folder for pages")
        self._most = max(1, self._memory // resources.page_bytes)
        root = Path(self._path).expanduser()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._store = Store(root / _folder(resources), self._size)
        for name, work in (("writer", self._write), ("reader", self._read)):
            thread = threading.Thread(
                target=work, args=(self._store,), name=f"kv-disk-{name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Write pending pages, and release the folder."""
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
        """Wait until everything that was put is written and flushed to the device.

        Args:
            seconds: timeout; None for none.

        Returns:
            Whether it is.
        """
        done = threading.Event()
        self._to_write.put(done)
        return done.wait(seconds)

    # Interface of KvTierStrategy

    def find(self, keys: Sequence[bytes]) -> int:
        """See ``KvTierStrategy``."""
        store, writing = self._opened, self._writing
        for i, key in enumerate(keys):
            name = store.name(key)
            # Checked before the store: a page is in the store before it is removed from here.
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
        # The caller overwrites its array after the call.
        self._writing[name] = page.copy()
        self._to_write.put(name)
        return []

    def get(self, keys: Sequence[bytes]) -> Sequence[NDArray[np.uint8]]:
        """See ``KvTierStrategy``; the arrays are never written to again."""
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
        """See ``KvTierStrategy``; there are no pins."""

    def keep(self, pages: Iterable[tuple[bytes, NDArray[np.uint8]]], seconds: float) -> None:
        """See ``Outlives``; limited to the pages that fit together."""
        deadline = time.monotonic() + seconds
        store = self._opened
        for key, page in pages:
            left = deadline - time.monotonic()
            # More than fit together would evict each other, the most useful ones first.
            if left <= 0 or len(store.spared) >= store.room(page.nbytes):
                break
            # Before it is looked up: pages written now must not evict it.
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
        """See ``Fetches``; pages read ahead for others may be evicted."""
        wanted: set[bytes] = set()
        for name in map(self._opened.name, keys):
            wanted.add(name)
            self._had.pop(name, None)
            if self._at_hand(name) is not None or name in self._fetching:
                continue
            if not self._has_room() and not self._evict_unwanted(wanted):
                return
            self._fetching[name] = None
            self._to_read.put(name)

    def page_seconds(self) -> float:
        """See ``Fetches``."""
        return self._page_seconds

    def ready(self, keys: Sequence[bytes]) -> int:
        """See ``Fetches``; counted pages stay available after the writer has written them.

        A query evicts nothing: pages that others may wait for stay, and a page that waits to be
        written is not counted if there is no room to hold it.
        """
        names = [self._opened.name(key) for key in keys]
        # Not evictable any more, so that no page of this query takes the room of another.
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
        """Whether another page fits in memory, evicting one that was returned if necessary."""
        if len(self._ahead) + len(self._fetching) < self._most:
            return True
        if not self._had:
            return False
        name = next(iter(self._had))
        del self._had[name], self._ahead[name]
        return True

    def _evict_unwanted(self, wanted: set[bytes]) -> bool:
        """Evict a page that is not wanted, but that others may wait for.

        Return whether there was one.
        """
        # A copy of the keys, as the reader adds pages meanwhile.
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
        """Write pages in order, and release the folder after the last one."""
        while (item := self._to_write.get()) is not None:
            if isinstance(item, threading.Event):
                self._guarded(store.sync)
                item.set()
                continue
            page = self._writing[item]
            if not self._guarded(lambda name=item, page=page: store.append(name, page.data)):  # type: ignore[misc]
                self.dropped += 1
            # After it is in the store, so that it is always found in one of the two.
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
            # Last, so that the page counts as either being read or in memory, never as neither.
            self._fetching.pop(name, None)

    def _guarded(self, work: Callable[[], None]) -> bool:
        """Perform a device operation; return whether it succeeded."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a thread that ends would stop the tier
            if self._failures % _LOGGED == 0:
                _log.warning("KV tier: the disk of %s failed: %s", self._path, error)
            self._failures += 1
            return False
        return True
