"""Append-only file of records; a record is a header and the bytes of a page.

The header contains a digest of itself, so that the end of complete records is found after a crash,
and a keyed digest of its page, which is verified whenever the page is read.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MAGIC = b"gwkv0001"
_FIELDS = struct.Struct("<8s32sQ16s")
_CHECK_BYTES = 8
HEADER_BYTES = _FIELDS.size + _CHECK_BYTES


class Record(NamedTuple):
    """Location of a page in its segment.

    Attributes:
        name: of the page, 32 bytes.
        offset: of its bytes in the file.
        length: of its bytes.
    """

    name: bytes
    offset: int
    length: int


def _digest(secret: bytes, name: bytes, page: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(name, digest_size=16, key=secret)
    digest.update(page)
    return digest.digest()


def _check(fields: bytes) -> bytes:
    return hashlib.blake2b(fields, digest_size=_CHECK_BYTES).digest()


class Segment:
    """Open file; one thread appends, any thread reads or closes.

    Attributes:
        path: of the file.
        size: bytes of complete records.
    """

    def __init__(self, path: Path, secret: bytes) -> None:
        self.path = path
        self._secret = secret
        # O_NOFOLLOW, because a planted symbolic link could lead to another file.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._fd = os.open(path, flags, 0o600)
        self._lock = threading.Lock()
        self.size = 0

    def recover(self) -> Iterator[Record]:
        """Yield every complete record; truncate what follows the last one."""
        end = os.fstat(self._fd).st_size
        while self.size + HEADER_BYTES <= end:
            header = os.pread(self._fd, HEADER_BYTES, self.size)
            fields = header[: _FIELDS.size]
            # A torn record: writing was interrupted here, and nothing after it is complete.
            if len(header) < HEADER_BYTES or header[_FIELDS.size :] != _check(fields):
                break
            magic, name, length, _ = _FIELDS.unpack(fields)
            offset = self.size + HEADER_BYTES
            if magic != _MAGIC or offset + length > end:
                break
            self.size = offset + length
            yield Record(name, offset, length)
        os.ftruncate(self._fd, self.size)

    def append(self, name: bytes, page: memoryview) -> Record:
        """Append a page.

        Raises:
            OSError: it could not be written completely; nothing was.
        """
        fields = _FIELDS.pack(_MAGIC, name, len(page), _digest(self._secret, name, page))
        record = Record(name, self.size + HEADER_BYTES, len(page))
        # One write for the header and the page, in most cases.
        rest = memoryview(b"".join((fields, _check(fields), page)))
        at = self.size
        try:
            while rest:
                written = os.pwrite(self._fd, rest, at)
                at += written
                rest = rest[written:]
        except OSError:
            os.ftruncate(self._fd, self.size)
            raise
        self.size = at
        return record

    def read(self, record: Record) -> bytes | None:
        """Return the bytes of a page; None if they are damaged or missing.

        Raises:
            OSError: the device cannot read them.
        """
        # Against `close` in another thread: the number of a closed descriptor may be reused at
        # once.
        with self._lock:
            if self._fd < 0:
                return None
            header = os.pread(self._fd, HEADER_BYTES, record.offset - HEADER_BYTES)
            page = os.pread(self._fd, record.length, record.offset)
        if len(header) < HEADER_BYTES or len(page) < record.length:
            return None
        _, name, _, digest = _FIELDS.unpack(header[: _FIELDS.size])
        if name != record.name or digest != _digest(self._secret, name, page):
            return None
        return page

    def sync(self) -> None:
        """Flush to the device, to survive a power failure."""
        with self._lock:
            if self._fd >= 0:
                os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; it is no longer read."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1
