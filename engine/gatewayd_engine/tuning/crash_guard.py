"""Remembers across processes what was being tried when one ended.

A kernel that faults takes the whole process with it, one that hangs has it ended from outside; not
every later process may try the same. A file says what is being tried, locked as long as its process
lives: one that can be locked belongs to a process that is gone. Each process makes one file and
overwrites it, because a home directory may be on a network.

A process that is stopped says nothing about what it tries: SIGTERM clears the file. Python handles
signals only between its own instructions, so a process that hangs in a kernel does not clear it,
and ends by the SIGKILL that follows.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

_log = logging.getLogger(__name__)
_BYTES = 1024
"""Of a file; what is longer is cut off."""


class Attempt(NamedTuple):
    """What a process tries.

    Attributes:
        family: whose it is.
        what: tells it from all others of the family.
    """

    family: str
    what: str


class Attempts:
    """The attempts of one process.

    Args:
        folder: where processes leave word; None for nowhere.
        prefix: names whose attempts these are.
    """

    def __init__(self, folder: Path | None, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._file: int | None = None

    def fatal(self) -> set[Attempt]:
        """What processes that are gone were trying; asked again, it is forgotten."""
        found: set[Attempt] = set()
        for path in [] if self._folder is None else self._folder.glob(f"{self._prefix}.*.trying"):
            try:
                file = os.open(path, os.O_RDONLY)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    text = os.read(file, _BYTES).decode().strip()
                    path.unlink()
                finally:
                    os.close(file)
            except (OSError, ValueError):
                continue  # it lives, or another process was here first
            family, _, what = text.partition("\n")
            if family:
                found.add(Attempt(family, what))
        return found

    @contextmanager
    def trying(self, attempt: Attempt) -> Iterator[None]:
        """Leave word that this is tried, as long as it is; not to be nested."""
        file = self._opened()
        if file is None:
            yield
            return
        with _stopping(lambda: _overwrite(file, "")):
            _overwrite(file, "\n".join(attempt))
            try:
                yield
            finally:
                _overwrite(file, "")

    def _opened(self) -> int | None:
        """A file that this process holds locked until it ends; None where there can be none."""
        if self._file is not None or self._folder is None:
            return self._file
        path = self._folder / f"{self._prefix}.{os.getpid()}-{os.urandom(4).hex()}.trying"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            _log.debug("attempts are not noted: %s", error)
            self._folder = None
            return None
        weakref.finalize(self, _remove, path, file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            # Others would take what is tried for what ended a process.
            _log.debug("attempts are not noted: %s", error)
            self._folder = None
            return None
        self._file = file
        return file


def _remove(path: Path, file: int) -> None:
    path.unlink(missing_ok=True)
    os.close(file)


def _overwrite(file: int, text: str) -> None:
    try:
        os.pwrite(file, text.encode()[:_BYTES].ljust(_BYTES), 0)
    except OSError as error:
        _log.debug("an attempt is not noted: %s", error)


@contextmanager
def _stopping(forget: Callable[[], None]) -> Iterator[None]:
    """Call a function before SIGTERM ends this process, if that is what SIGTERM would do."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        forget()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
