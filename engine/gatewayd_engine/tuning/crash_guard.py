"""On-disk record of what a process is trying, so that later ones know what crashed it.

A kernel that faults ends the whole process, one that hangs is killed from outside; later processes
must not all try the same. A file names the current attempt, and is locked during its process's
lifetime: a file that can be locked belongs to a process that has ended. Each process creates one
file and overwrites it, because a home directory may be on a network.

Stopping a process says nothing about its attempt: SIGTERM clears the file. Python handles signals
only between its own instructions, so a process that hangs in a kernel does not clear it, and is
ended by the SIGKILL that follows.
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
"""Size of a file; longer text is truncated."""


class Attempt(NamedTuple):
    """An attempt of a process.

    Attributes:
        family: candidate family.
        what: identifies the attempt within the family.
    """

    family: str
    what: str


class Attempts:
    """The attempts of one process.

    Args:
        folder: folder of the files; None to disable recording.
        prefix: file name prefix of this kind of attempts.
    """

    def __init__(self, folder: Path | None, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._file: int | None = None

    def collect_fatal(self) -> set[Attempt]:
        """Return and clear the attempts of processes that have ended during them."""
        found: set[Attempt] = set()
        for path in [] if self._folder is None else self._folder.glob(f"{self._prefix}.*.trying"):
            try:
                file = os.open(path, os.O_RDONLY)
                try:
                    # Fails while the process that created the file lives; its lock ends with it.
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    text = os.read(file, _BYTES).decode().strip()
                    # Before the attempt counts: of several starts only one can remove the file.
                    path.unlink()
                finally:
                    os.close(file)
            except (OSError, ValueError):
                continue  # the process is running, or another one was faster
            family, _, what = text.partition("\n")
            if family:
                found.add(Attempt(family, what))
        return found

    @contextmanager
    def trying(self, attempt: Attempt) -> Iterator[None]:
        """Record an attempt for the duration of the context; not reentrant."""
        file = self._opened()
        if file is None:
            yield
            return
        # Installed before the attempt is written, so that no signal finds it written and unguarded.
        with _before_sigterm(lambda: _overwrite(file, "")):
            _overwrite(file, "\n".join(attempt))
            try:
                yield
            finally:
                _overwrite(file, "")

    def _opened(self) -> int | None:
        """Return the file that this process holds locked; None if it cannot be created."""
        if self._file is not None or self._folder is None:
            return self._file
        # Random, as containers that share a home directory may have the same process ids.
        path = self._folder / f"{self._prefix}.{os.getpid()}-{os.urandom(4).hex()}.trying"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            _log.debug("crash guard: cannot record autotuning attempts: %s", error)
            self._folder = None
            return None
        # Runs at interpreter exit, too; a process that is killed leaves its file for the next.
        weakref.finalize(self, _remove, path, file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Another start may have collected the file, still empty, before it was locked.
            if not path.exists():
                return self._opened()
        except OSError as error:
            # Without a lock, other processes would take the attempt for a crash.
            _log.debug("crash guard: cannot record autotuning attempts: %s", error)
            self._folder = None
            return None
        self._file = file
        return file


def _remove(path: Path, file: int) -> None:
    path.unlink(missing_ok=True)
    os.close(file)


def _overwrite(file: int, text: str) -> None:
    try:
        # One write of fixed length: nothing of a longer text before remains.
        os.pwrite(file, text.encode()[:_BYTES].ljust(_BYTES), 0)
    except OSError as error:
        _log.debug("crash guard: cannot record an autotuning attempt: %s", error)


@contextmanager
def _before_sigterm(clear: Callable[[], None]) -> Iterator[None]:
    """Call a function before SIGTERM ends this process, if SIGTERM has its default action."""
    # Python sets signal handlers in the main thread only. Others' handlers are left alone.
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        clear()
        # Raised again with the default action, so that the exit status tells of the signal.
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
