"""Remembers across processes what was being tried when one ended.

A kernel that faults takes the whole process with it, one that hangs has it ended from outside; the
next process must not try the same. A file names what is being tried, locked as long as its process
lives: one that can be locked belongs to a process that is gone.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Self

_log = logging.getLogger(__name__)
_MOST_BYTES = 200


class Attempts:
    """The attempts of one process; a context holds the lock.

    Args:
        folder: where processes leave word; None for nowhere.
        prefix: names whose attempts these are.
    """

    def __init__(self, folder: Path | None, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._path: Path | None = None
        self._file: int | None = None

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

    def begin(self, name: str) -> None:
        """Leave word that this is tried from now on."""
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, name.encode()[:_MOST_BYTES], 0)

    def __enter__(self) -> Self:
        if self._folder is None:
            return self
        path = self._folder / f"{self._prefix}.{os.getpid()}-{os.urandom(4).hex()}.trying"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._path = path
        except OSError as error:
            _log.debug("attempts are not noted: %s", error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._file is not None:
            os.close(self._file)
        self._path = self._file = None
