"""Locks between processes: of a repository in the store, and of what is being served."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gatewayd.hub.errors import IN_USE, HubError
from gatewayd.hub.store import repo_folder, store_folder


@contextmanager
def changing(repo: str, *, wait: bool) -> Iterator[bool]:
    """Let no other process change a repository of the store.

    Yields:
        Whether another one had to be waited for.

    Raises:
        HubError: another one changes it, and it is not waited for.
        OSError: the lock cannot be created.
    """
    # Where huggingface's library has its locks.
    file = store_folder() / ".locks" / repo_folder(repo).name / "gatewayd.lock"
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        has_waited = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise HubError(
                    f"{repo} is being pulled or deleted by another process; wait for its end",
                    IN_USE,
                ) from None
            has_waited = True
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield has_waited
    finally:
        os.close(descriptor)


def hold_served(path: Path) -> int | None:
    """Mark a folder or file as served, until a descriptor is closed or this process ends.

    Returns:
        The descriptor; None for a path that cannot be opened: what serves it will say why.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        # Of the file itself: under whatever name it is reached, also in a store that is read only.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def is_served(path: Path) -> bool:
    """Whether a process serves a folder or file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
