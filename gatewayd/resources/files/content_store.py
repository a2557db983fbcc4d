"""Store of file contents: a folder. All of it blocks: call it in threads.

A content is written under a temporary name, synced to the disk and renamed; its row follows. A
content without a row at the start of the daemon was incomplete, or was being deleted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
import threading
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from gatewayd.store.atomic_files import sync_folder

_log = logging.getLogger(__name__)

_OURS = re.compile(r"draft-.*\.part|file-[0-9a-f]{32}")
"""File names of this store; others in the folder belong to the operator."""


class ContentTally:
    """Total bytes of all contents; thread-safe."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = threading.Lock()

    def add(self, num_bytes: int) -> None:
        """Add a number of bytes; negative when contents are deleted."""
        # Uploads write in several threads, and `+=` is not atomic.
        with self._lock:
            self.bytes += num_bytes


class Draft:
    """Content that is being written.

    Attributes:
        size: bytes so far.
    """

    def __init__(self, folder: Path, tally: ContentTally) -> None:
        self._folder = folder
        self._tally = tally
        self._is_kept = False
        self._file: BinaryIO = tempfile.NamedTemporaryFile(  # type: ignore[assignment]  # noqa: SIM115 - kept or dropped
            dir=folder, prefix="draft-", suffix=".part", delete=False
        )
        self.size = 0

    def write(self, data: bytes) -> None:
        """Append data.

        Raises:
            OSError: the disk is full, or cannot be written.
        """
        self._file.write(data)
        self.size += len(data)
        self._tally.add(len(data))

    def commit(self, name: str) -> None:
        """Complete the content: sync it to the disk and rename it.

        Raises:
            OSError: the disk is full, or cannot be written; no content has that name.
        """
        # The order decides what a power failure leaves: content, then its name, then the folder.
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.rename(self._file.name, self._folder / name)
        try:
            sync_folder(self._folder)
        except OSError:
            # No row will refer to it.
            with contextlib.suppress(OSError):
                os.unlink(self._folder / name)
            raise
        self._is_kept = True

    def discard(self) -> None:
        """Delete the draft; no effect once it is complete."""
        with contextlib.suppress(OSError):
            self._file.close()
        # After a commit the draft's name does not exist, and the content keeps its own.
        with contextlib.suppress(OSError):
            os.unlink(self._file.name)
        if not self._is_kept:
            self._tally.add(-self.size)
            self.size = 0


class ContentStore:
    """Store of contents by their ids.

    Args:
        folder: created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._tally = ContentTally()
        for entry in os.scandir(folder):
            if _OURS.fullmatch(entry.name):
                self._tally.add(entry.stat(follow_symlinks=False).st_size)

    @property
    def bytes(self) -> int:
        """Total bytes of all contents, including drafts."""
        return self._tally.bytes

    def draft(self) -> Draft:
        """Start a content."""
        return Draft(self._folder, self._tally)

    def path(self, name: str) -> Path:
        """Path of a content."""
        return self._folder / name

    def remove(self, names: Collection[str]) -> None:
        """Delete contents whose rows were deleted; failures are retried at the next start."""
        for name in names:
            path = self._folder / name
            try:
                num_bytes = path.lstat().st_size
                os.unlink(path)
                self._tally.add(-num_bytes)
            except FileNotFoundError:
                pass
            except OSError as error:
                _log.warning("cannot delete file content %s: %s", name, error.strerror)

    def clean(self, known: Collection[str]) -> int:
        """Delete contents without rows; at the start, before anything is written.

        Returns:
            How many contents were deleted.
        """
        # Listed completely before any deletion, which would change the folder during the scan.
        names = [entry.name for entry in os.scandir(self._folder) if _OURS.fullmatch(entry.name)]
        orphans = [name for name in names if name not in known]
        self.remove(orphans)
        return len(orphans)
