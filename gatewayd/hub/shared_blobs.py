"""Contents that repositories share, in the layout that huggingface's library writes for Xet.

``blobs/ETAG`` of a repository is then a link to ``blobs/XX/HASH`` of the whole store. Pulls of this
program do not write it; a model of another tool is deleted with it.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

_HASH = re.compile(r"[0-9a-f]{64}")


def shared_targets(repo: Path) -> set[Path]:
    """Return the shared contents to which a repository refers."""
    return {target for link in _links(repo) if (target := _target(link)) is not None}


def free_unused(targets: set[Path]) -> int:
    """Remove those of some shared contents to which no repository of the store refers.

    Returns:
        Number of bytes freed.

    Raises:
        OSError: one cannot be removed.
    """
    return sum(map(_free, targets))


def _free(target: Path) -> int:
    # The library's lock of a content, held while it makes a link to that.
    lock = target.with_name(f"{target.name}.lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except FileNotFoundError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        store = target.parent.parent.parent
        if not target.is_file() or any(target in shared_targets(one) for one in store.glob("*--*")):
            return 0
        size = target.stat().st_size
        target.unlink()
        # Its list of links; the lock stays, as another process may wait for it.
        target.with_name(f"{target.name}.refs").unlink(missing_ok=True)
    finally:
        os.close(descriptor)
    return size


def _links(repo: Path) -> Iterator[Path]:
    return (path for path in (repo / "blobs").glob("*") if path.is_symlink())


def _target(link: Path) -> Path | None:
    """Return the shared content to which a link leads; None if it leads elsewhere."""
    store = link.parent.parent.parent
    target = Path(os.path.abspath(link.parent / os.readlink(link)))
    if target.parent.parent != store / "blobs" or not _HASH.fullmatch(target.name):
        return None
    # Not through a further link, which may lead out of the store.
    inside = store.resolve() / "blobs" / target.parent.name / target.name
    return target if target.resolve() == inside else None
