"""Atomic replacement of small files, on a full disk as on a power failure."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_all(descriptor: int, data: bytes) -> None:
    """Write all data, since one call may write only a part.

    Raises:
        OSError: the disk is full, read-only or damaged.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def replace(file: Path, data: bytes) -> None:
    """Replace a file atomically, readable by its owner only. Blocks.

    Raises:
        OSError: it cannot be written; the previous file is unchanged, and no draft is left.
    """
    draft = file.with_name(f"{file.name}.part")
    # Left by a process that was killed; O_EXCL would refuse to write over it.
    draft.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(draft, flags, 0o600)
    try:
        try:
            write_all(descriptor, data)
            # Before the rename, or a power failure could leave the new name with missing content.
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.rename(file)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    # The rename itself is durable only once the folder is synced.
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that a rename in it survives a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
