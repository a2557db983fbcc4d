"""Writing of files that appear whole, and of files that survive a loss of power."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically, or create it with its folders, readable by its owner only.

    Other processes find the former contents or all of the new ones. Nothing is synced.

    Raises:
        OSError: it cannot be written; the former file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, as a file cannot be renamed across file systems.
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
        try:
            file.write(data)
            file.close()
            Path(file.name).replace(path)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise


def sync(path: Path) -> None:
    """Flush the contents of a file, or the entries of a folder, such as renamed ones, to disk.

    Raises:
        OSError: it cannot be read, or the disk is damaged.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
