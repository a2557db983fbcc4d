"""The local store of models: huggingface's cache, read and cleaned up without its library.

The layout is the documented one, shared with other tools: ``models--ORG--NAME/refs/REVISION`` has a
commit, ``snapshots/COMMIT`` has links to ``blobs``, which are named by their digests.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from gatewayd.hub.choice import INDEX, MOST_INDEX_BYTES, ModelFiles, choose, too_large
from gatewayd.hub.errors import NO_CHOICE, NOT_STORED, UNSERVABLE, HubError
from gatewayd.hub.reference import HubReference, parse_reference
from gatewayd.hub.revisions import commits_of, read_listing

_STALE_SECONDS = 3600.0
"""Age of a partial file that no process writes any more, longer than the longest wait of a pull."""
_REPO_FOLDER = re.compile(r"models--([A-Za-z0-9._-]+?)--([A-Za-z0-9._-]+)")


def hub_home() -> Path:
    """The folder of huggingface's tools, by the variables that they read."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    return expanded(home)


def store_folder() -> Path:
    """The cache's folder, by the variables that huggingface's tools read."""
    chosen = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return expanded(chosen) if chosen else hub_home() / "hub"


def expanded(path: str) -> Path:
    """An absolute path, with ``~`` and variables replaced as huggingface's tools do."""
    return Path(os.path.expandvars(os.path.expanduser(path))).absolute()


def repo_folder(repo: str) -> Path:
    """The folder of a repository, which need not exist."""
    return store_folder() / f"models--{repo.replace('/', '--')}"


def stored_repos() -> Iterator[str]:
    """Yield the names of the repositories in the store, sorted."""
    with os.scandir(store_folder()) as entries:
        folders = sorted(entry.name for entry in entries if entry.is_dir())
    for folder in folders:
        if (found := _REPO_FOLDER.fullmatch(folder)) and "--" not in found[2]:
            yield f"{found[1]}/{found[2]}"


def file_names(folder: Path) -> list[str]:
    """Return the files of a folder, sorted, with slashes; dangling links are left out."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if name.isprintable())


def stored_files(reference: HubReference, folder: Path) -> ModelFiles:
    """Return the files of a model in a snapshot.

    Raises:
        HubError: it is not there, or not complete.
    """
    stored = file_names(folder)

    def read_index() -> bytes:
        file = folder / INDEX
        if INDEX not in stored:
            raise HubError(f"{reference.repo}: {INDEX} is missing", UNSERVABLE)
        if file.stat().st_size > MOST_INDEX_BYTES:
            raise too_large(reference.repo)
        return file.read_bytes()

    # By all files of the commit, where they are known: of a repository with safetensors no GGUF
    # model is served because it alone was fetched.
    names = {*stored, *read_listing(repo_folder(reference.repo), folder.name)}
    chosen = choose(names, reference, read_index)
    if missing := [name for name in chosen.needed if name not in stored]:
        raise HubError(f"{reference.repo}: {', '.join(missing[:5])} is missing", UNSERVABLE)
    return chosen


def find_stored(reference: HubReference) -> tuple[Path, ModelFiles]:
    """Find a model in the store: at the commit of its branch, or the last one where it is complete.

    Returns:
        The snapshot's folder, and the model's files in it.

    Raises:
        HubError: it is not stored completely.
    """
    repo = repo_folder(reference.repo)
    advice = f"`gatewayd model pull {reference}` fetches it"
    first: HubError | None = None
    for commit in commits_of(repo, reference):
        folder = repo / "snapshots" / commit
        if not folder.is_dir():
            continue
        try:
            return folder, stored_files(reference, folder)
        except HubError as error:
            if first is not None:
                continue
            first = error
            if error.code != NO_CHOICE:
                first = HubError(f"{error}, in {folder}; {advice}", NOT_STORED)
    raise first or HubError(f"{reference} is not in {store_folder()}; {advice}", NOT_STORED)


def stored_path(path: str) -> Path:
    """Return the folder or GGUF file of a model in the store.

    Args:
        path: a reference, such as ``hf:ORG/NAME``.

    Raises:
        HubError: it is no reference, or the model is not stored completely.
    """
    return path_of(parse_reference(path))


def path_of(reference: HubReference) -> Path:
    """Return the folder or GGUF file of a model in the store.

    Raises:
        HubError: it is not stored completely.
    """
    folder, files = find_stored(reference)
    return folder / files.served


def remove_stale_parts(repo: str) -> None:
    """Remove partial files of downloads that were killed; live ones write every few seconds."""
    newest = time.time() - _STALE_SECONDS
    for part in (repo_folder(repo) / "blobs").glob("*.incomplete"):
        with contextlib.suppress(OSError):
            if part.stat().st_mtime < newest:
                part.unlink()


def free_bytes() -> int:
    """Free space of the store's disk, in bytes.

    Raises:
        OSError: it cannot be asked.
    """
    folder = store_folder()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
