"""Location of the store's folder, locked by a single daemon.

The default is systemd's state directory, or the user's. If the default is locked by another daemon
of the user, a temporary folder is used, which is deleted at the end.
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
    """A locked folder, until ``close``.

    Attributes:
        folder: the folder.
        is_temporary: whether it is deleted when the daemon stops.
        last_used: Unix time of the last ``touch`` by any process; None for a new store.
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
        """Record that the store is in use."""
        with contextlib.suppress(OSError):  # without it the next process delays expiry by an hour
            os.utime(self._lock, (now, now))

    def close(self) -> None:
        """Release the lock, and delete a temporary folder."""
        os.close(self._lock)
        if self.is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)


def default_folder(environ: Mapping[str, str]) -> Path | None:
    """The default folder; None without a home directory."""
    if state := environ.get("STATE_DIRECTORY"):  # systemd's; several are joined by colons
        return Path(state.split(":")[0])
    if state := environ.get("XDG_STATE_HOME"):
        return Path(state) / "gatewayd"
    try:
        return Path.home() / ".local" / "state" / "gatewayd"
    except RuntimeError:
        return None


def lock_store(path: str | None, environ: Mapping[str, str] | None = None) -> StoreLocation:
    """Create and lock the folder.

    Args:
        path: the configured folder, ``temporary``, or None for the default.
        environ: the environment; None for the process's own.

    Raises:
        StoreError: the configured folder cannot be used.
    """
    environ = os.environ if environ is None else environ
    if path == TEMPORARY:
        return _temporary()
    if path is not None:
        return _lock(Path(path).expanduser().absolute())
    folder = default_folder(environ)
    # A service does not fall back to a temporary store: it would lose data without notice.
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
    """Delete temporary folders that killed daemons of this user have left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, StoreError):  # it belongs to another user, or is in use
            # Without a lock file it may be one that another daemon is just creating.
            if folder.lstat().st_uid == os.getuid() and (folder / _LOCK).exists():
                _lock(folder, is_temporary=True).close()


def _lock(folder: Path, *, is_temporary: bool = False) -> StoreLocation:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Closed on exec: a child that inherited it would hold the lock beyond the daemon's end.
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"the store {folder} cannot be used: {error.strerror}") from error
    try:
        # The kernel releases it when the process ends, however it does: no stale lock is possible.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _holder(lock)
        os.close(lock)
        raise StoreError(f"the store {folder} is in use by another process{holder}") from error
    before = os.fstat(lock)
    # An empty file was created just now.
    last_used = before.st_mtime if before.st_size else None
    # Overwritten at a fixed width, which needs no additional disk space.
    with contextlib.suppress(OSError):  # messages of other processes then lack the pid
        os.pwrite(lock, b"%-10d\n" % os.getpid(), 0)
    place = StoreLocation(folder, is_temporary, last_used, lock)
    if last_used is not None:  # restore the time, which the write has set by the wall clock
        place.touch(last_used)
    try:
        # SQLite would create it readable by all, and the folder may be, too, as systemd's is.
        os.close(os.open(place.database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        place.close()
        raise StoreError(f"the store {folder} cannot be used: {error.strerror}") from error
    return place


def _holder(lock: int) -> str:
    pid = os.pread(lock, 32, 0).strip()
    return f" (pid {pid.decode()})" if pid.isdigit() else ""
