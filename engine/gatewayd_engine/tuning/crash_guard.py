"""Remembers across processes what was being tried when one ended.

A kernel that faults takes the whole process with it, one that hangs has it ended from outside; the
next process must not try the same. A file names what is being tried, locked as long as its process
lives: one that can be locked belongs to a process that is gone.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_log = logging.getLogger(__name__)
_MOST_BYTES = 200


class Attempts:
    """The attempts of one process.

    Args:
        folder: where processes leave word; None for nowhere.
        prefix: names whose attempts these are.
    """

    def __init__(self, folder: Path | None, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix

    def fatal(self) -> list[str]:
        """What processes that are gone were trying; asked again, it is forgotten."""
        found: list[str] = []
        for path in [] if self._folder is None else self._folder.glob(f"{self._prefix}.*.trying"):
            try:
                file = os.open(path, os.O_RDONLY)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    name = os.read(file, _MOST_BYTES).decode()
                    path.unlink()
                finally:
                    os.close(file)
            except (OSError, ValueError):
                continue  # it lives, or another process was here first
            found += [name] if name else []
        return found

    @contextmanager
    def trying(self, name: str) -> Iterator[None]:
        """Leave word that this is tried, as long as it is."""
        if self._folder is None:
            yield
            return
        path = self._folder / f"{self._prefix}.{os.getpid()}-{os.urandom(4).hex()}.trying"
        file = _noted(path, name)
        try:
            yield
        finally:
            if file is not None:
                path.unlink(missing_ok=True)
                os.close(file)


def _noted(path: Path, name: str) -> int | None:
    """A new file that this process holds locked, with a name in it; None where that fails."""
    file = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, name.encode()[:_MOST_BYTES])
    except OSError as error:
        _log.debug("attempts are not noted: %s", error)
    return file
