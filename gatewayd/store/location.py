"""Where the store is, and that it is one daemon's alone.

Unless it is set, the folder is systemd's state directory, else the user's. A user's second daemon
finds that one taken; it serves all the same, on a folder that goes when it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gatewayd.store.errors import StoreError

_log = logging.getLogger(__name__)

TEMPORARY = "temporary"
_LOCK = "lock"
_PREFIX = "gatewayd-temporary-"


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A folder that is ours until ``close``.

    Attributes:
        folder: of the store.
        is_temporary: whether it goes when the daemon ends.
        last_used: Unix time of the last ``touch`` by anybody; None for a new one.
    """

    folder: Path
    is_temporary: bool
    last_used: float | None
    _lock: int

    @property
    def database(self) -> Path:
        """The database's file."""
        return self.folder / "gatewayd.db"

    @property
    def contents(self) -> Path:
        """The folder of files' contents."""
        return self.folder / "files"

    def touch(self, now: float) -> None:
        """Note that it is used."""
        with contextlib.suppress(OSError):  # the next life waits an hour before it deletes
            os.utime(self._lock, (now, now))

    def close(self) -> None:
        """Let others have it."""
        os.close(self._lock)
        if self.is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)


def default_folder(environ: Mapping[str, str]) -> Path | None:
    """The folder where none is configured; None where there is no home."""
    if state := environ.get("STATE_DIRECTORY"):  # systemd's; several are joined by colons
        return Path(state.split(":")[0])
    if state := environ.get("XDG_STATE_HOME"):
        return Path(state) / "gatewayd"
    try:
        return Path.home() / ".local" / "state" / "gatewayd"
    except RuntimeError:
        return None


def take(path: str | None, environ: Mapping[str, str] | None = None) -> StoreLocation:
    """Make the folder and lock it.

    Args:
        path: what is configured: a folder, ``temporary``, or None for the default.
        environ: the environment; None takes the process's own.

    Raises:
        StoreError: a folder that is configured cannot be used.
    """
    environ = os.environ if environ is None else environ
    if path == TEMPORARY:
        return _temporary()
    if path is not None:
        return _lock(Path(path).expanduser().absolute())
    folder = default_folder(environ)
    if "STATE_DIRECTORY" in environ and folder is not None:
        return _lock(folder)
    try:
        if folder is None:
            raise StoreError("there is no home directory; set [store] path")
        return _lock(folder)
    except StoreError as error:
        _log.warning(
            "%s; using a temporary store that is deleted when the daemon stops: set [store] "
            "path to a folder of its own",
            error,
        )
        return _temporary()


def _temporary() -> StoreLocation:
    _delete_left()
    return _lock(Path(tempfile.mkdtemp(prefix=_PREFIX)), is_temporary=True)


def _delete_left() -> None:
    """Delete temporary folders of daemons of ours that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, StoreError):  # it is another's, or in use
            if folder.lstat().st_uid == os.getuid() and (folder / _LOCK).exists():
                _lock(folder, is_temporary=True).close()


def _lock(folder: Path, *, is_temporary: bool = False) -> StoreLocation:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"the store {folder} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _holder(lock)
        os.close(lock)
        raise StoreError(f"the store {folder} is in use by another process{holder}") from error
    before = os.fstat(lock)
    last_used = before.st_mtime if before.st_size else None
    # Over what is there, at one width: that needs no room on the disk.
    with contextlib.suppress(OSError):  # a message to others names no pid then
        os.pwrite(lock, b"%-10d\n" % os.getpid(), 0)
    place = StoreLocation(folder, is_temporary, last_used, lock)
    if last_used is not None:  # writing has set it, by a clock that may be wrong
        place.touch(last_used)
    try:
        # SQLite would make it for all to read; a folder that was there, such as systemd's, may be.
        os.close(os.open(place.database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        place.close()
        raise StoreError(f"the store {folder} cannot be used: {error.strerror}") from error
    return place


def _holder(lock: int) -> str:
    pid = os.pread(lock, 32, 0).strip()
    return f" (pid {pid.decode()})" if pid.isdigit() else ""
