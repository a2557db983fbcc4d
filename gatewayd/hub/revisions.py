"""Branches and tags in the store, the commits that they had before, and listings of commits.

``refs`` is huggingface's. ``.gatewayd`` beside it has what that layout has no place for: in
``former`` the commits of a branch before the last one, as a part that was pulled then is still
served from there; in ``listings`` the names of the files of a commit, as those in the store do not
tell which of them a reference without a part names.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from gatewayd.hub.reference import HubReference
from gatewayd_engine.process.file_writes import sync

_OURS = ".gatewayd"
_COMMIT = re.compile(r"[0-9A-Za-z_-]+")
"""It becomes the name of a folder."""
_MOST_LISTED_BYTES = 64 * 1024 * 1024


def commits_of(repo: Path, reference: HubReference) -> list[str]:
    """Return the commits that a reference may mean, the preferred one first.

    Args:
        repo: folder of the repository.
        reference: a branch, tag or commit.
    """
    if reference.is_commit:
        return [reference.revision]
    found = [commit_at(repo, reference.revision), *_lines(_former(repo, reference.revision))]
    return [commit for commit in dict.fromkeys(found) if _COMMIT.fullmatch(commit)]


def commit_at(repo: Path, revision: str) -> str:
    """Return the commit of a branch or tag; empty if it has none."""
    return "".join(_lines(repo / "refs" / revision)[:1]).strip()


def revisions_of(repo: Path, commit: str) -> list[str]:
    """Return the branches and tags that are or were at a commit, sorted."""
    found = set()
    for root in (repo / "refs", repo / _OURS / "former"):
        files = (path for path in root.rglob("*") if path.is_file())
        found |= {path.relative_to(root).as_posix() for path in files if commit in _lines(path)}
    return sorted(found)


def write_ref(repo: Path, reference: HubReference, commit: str) -> None:
    """Record the commit of a branch or tag, atomically, and which one it had before.

    Raises:
        OSError: it cannot be written.
    """
    if reference.is_commit:
        return
    before = [one for one in commits_of(repo, reference) if one != commit]
    stored = [one for one in before if (repo / "snapshots" / one).is_dir()]
    if stored:
        _write(repo, _former(repo, reference.revision), stored)
    _write(repo, repo / "refs" / reference.revision, [commit])


def forget_revision(repo: Path, revision: str) -> None:
    """Remove a branch or tag with its former commits.

    Raises:
        OSError: it cannot be removed.
    """
    for file in (repo / "refs" / revision, _former(repo, revision)):
        file.unlink(missing_ok=True)


def write_listing(repo: Path, commit: str, names: list[str]) -> None:
    """Record which files a commit has, of those that may be fetched; their names are printable.

    Raises:
        OSError: it cannot be written.
    """
    _write(repo, repo / _OURS / "listings" / commit, names)


def read_listing(repo: Path, commit: str) -> list[str]:
    """Return the files of a commit; none if it was fetched by another tool."""
    return _lines(repo / _OURS / "listings" / commit)


def forget_listing(repo: Path, commit: str) -> None:
    """Remove a listing.

    Raises:
        OSError: it cannot be removed.
    """
    (repo / _OURS / "listings" / commit).unlink(missing_ok=True)


def _former(repo: Path, revision: str) -> Path:
    return repo / _OURS / "former" / revision


def _lines(file: Path) -> list[str]:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if file.stat().st_size <= _MOST_LISTED_BYTES:
            return [line for line in file.read_text("utf-8").split("\n") if line.strip()]
    return []


def _write(repo: Path, file: Path, lines: list[str]) -> None:
    """Write a file that appears whole, also after a loss of power."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # Not in `refs`, where every file is a revision.
    made = repo / f".made.{os.getpid()}"
    # Without an end of line: other tools take the whole file for the commit.
    made.write_text("\n".join(lines), "utf-8")
    sync(made)
    made.replace(file)
    sync(file.parent)
