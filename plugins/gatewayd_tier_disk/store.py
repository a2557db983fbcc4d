"""Page store in a folder: segments in order of writing, an in-memory index, a lock, a secret.

The index is rebuilt from the segments when the folder is opened, so a crash cannot make them
inconsistent. Pages are named by a keyed digest of their keys, so that a folder does not reveal
which prompts it has seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import stat
import threading
from collections import deque
from functools import lru_cache
from pathlib import Path

from gatewayd_tier_disk.segments import HEADER_BYTES, Record, Segment

_NAMES = 1 << 16
_SECRET_BYTES = 32
_MOST_SEGMENT = 64 << 20
_SEGMENTS = 8
"""Minimum number of segments: dropping the oldest loses at most this fraction of the pages."""


class Store:
    """Pages on disk by name; one thread appends, any thread looks up and reads.

    Args:
        folder: created if missing; its parent must exist.
        size: maximum size in bytes.

    Attributes:
        name: returns a page's name for its key.
        spared: names of pages that are rewritten when their segment is dropped; at most ``room``.
        damaged: number of pages found damaged and dropped since it was opened.

    Raises:
        ValueError: another process uses the folder, or others may write to it.
        OSError: it cannot be used.
    """

    def __init__(self, folder: Path, size: int) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_owner(folder)
        self._folder = folder
        self._size = size
        self._segment_size = min(_MOST_SEGMENT, size // _SEGMENTS)
        # Before anything is read: another process may be appending.
        self._held = _lock(folder)
        self._index: dict[bytes, tuple[Segment, Record]] = {}
        self._segments: list[tuple[Segment, list[bytes]]] = []
        self._change = threading.Lock()
        self.spared: set[bytes] = set()
        self.damaged = 0
        try:
            self._secret = _secret(folder)
            # The same keys are looked up in every step while their sequence waits.
            self.name = lru_cache(_NAMES)(self._name)
            for path in sorted(folder.glob("*.kv")):
                self._recover(path)
        except BaseException:
            self.close()
            raise

    def _recover(self, path: Path) -> None:
        segment = Segment(path, self._secret)
        names: list[bytes] = []
        self._segments.append((segment, names))
        for record in segment.recover():
            # Segments are read in order of writing: the latest record of a page is the one that
            # counts.
            self._index[record.name] = segment, record
            names.append(record.name)

    def _name(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, digest_size=32, key=self._secret).digest()

    def __contains__(self, name: bytes) -> bool:
        return name in self._index

    def __len__(self) -> int:
        return len(self._index)

    def room(self, length: int) -> int:
        """Return how many pages can be appended in a row before the first is dropped."""
        return (self._size - self._segment_size) // (HEADER_BYTES + length)

    def append(self, name: bytes, page: memoryview) -> None:
        """Append a page, and drop the oldest ones if there is no room.

        Raises:
            OSError: it was not written.
        """
        # Spared pages are rewritten once at most: together they fit.
        waiting = deque([(name, page)])
        while waiting:
            name, page = waiting.popleft()
            needed = HEADER_BYTES + len(page)
            if name in self._index or needed > self._size:
                continue
            if not self._segments or self._segments[-1][0].size + needed > self._segment_size:
                self._begin_segment()
            # The segment being written stays, or nothing could be appended.
            while len(self._segments) > 1 and self._taken() + needed > self._size:
                waiting.extend(self._drop_oldest())
            segment, names = self._segments[-1]
            record = segment.append(name, page)
            names.append(name)
            self._index[name] = segment, record

    def read(self, name: bytes) -> bytes | None:
        """Return a page, verified; None if it is missing, or damaged and then dropped.

        Raises:
            OSError: the device cannot read it.
        """
        found = self._index.get(name)
        if found is None:
            return None
        segment, record = found
        page = segment.read(record)
        if page is None:
            with self._change:
                # The writer may have replaced it meanwhile.
                if self._index.get(name) == found:
                    del self._index[name]
                    self.damaged += 1
        return page

    def sync(self) -> None:
        """Flush appended pages to the device."""
        if self._segments:
            self._segments[-1][0].sync()

    def close(self) -> None:
        """Release the folder."""
        for segment, _ in self._segments:
            segment.close()
        self._segments = []
        self._index = {}
        os.close(self._held)

    def _taken(self) -> int:
        return sum(segment.size for segment, _ in self._segments)

    def _begin_segment(self) -> None:
        self.sync()
        number = int(self._segments[-1][0].path.stem) + 1 if self._segments else 0
        segment = Segment(self._folder / f"{number:012}.kv", self._secret)
        self._segments.append((segment, []))

    def _drop_oldest(self) -> list[tuple[bytes, memoryview]]:
        """Drop the oldest segment; return the spared pages in it."""
        segment, names = self._segments.pop(0)
        left = []
        for name in self.spared.intersection(names):
            found = self._index.get(name)
            # Read before the file is closed, and only if this is the record that counts.
            page = segment.read(found[1]) if found is not None and found[0] is segment else None
            if page is not None:
                left.append((name, memoryview(page)))
        with self._change:
            for name in names:
                found = self._index.get(name)
                if found is not None and found[0] is segment:
                    del self._index[name]
        segment.close()
        with contextlib.suppress(FileNotFoundError):
            segment.path.unlink()
        return left


def _check_owner(folder: Path) -> None:
    """Check that only this user can write: pages determine answers."""
    found = folder.lstat()
    why = ""
    if not stat.S_ISDIR(found.st_mode):
        why = "is a link or a file"
    elif found.st_uid != os.geteuid():
        why = f"belongs to the user {found.st_uid}"
    elif found.st_mode & 0o022:
        why = f"can be written to by others, its mode is {stat.S_IMODE(found.st_mode):o}"
    if why:
        raise ValueError(
            f"[kv_tier.disk] path {folder} {why}; it must be a folder of the daemon's user alone:"
            " remove it, and it will be created again"
        )


def _lock(folder: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    held = os.open(folder / "lock", flags, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        raise ValueError(
            f"[kv_tier.disk] path {folder} is in use by another process; "
            "each daemon needs a path of its own"
        ) from error
    return held


def _secret(folder: Path) -> bytes:
    """Return the folder's secret; create one if there is none yet."""
    path = folder / "secret"
    with contextlib.suppress(FileNotFoundError):
        # O_NONBLOCK, because opening a planted FIFO would wait for a writer.
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            secret = os.read(opened, _SECRET_BYTES + 1)
            is_ours = os.fstat(opened).st_uid == os.geteuid()
            if is_ours and len(secret) == _SECRET_BYTES:
                os.fchmod(opened, 0o600)
                return secret
        finally:
            os.close(opened)
    secret = secrets.token_bytes(_SECRET_BYTES)
    new = folder / "secret.new"
    new.unlink(missing_ok=True)
    made = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(secret)
        while rest:  # a nearly full disk may write only a part
            rest = rest[os.write(made, rest) :]
        os.fsync(made)
    finally:
        os.close(made)
    # Atomic: after a crash there is a complete secret or none.
    new.rename(path)
    return secret
