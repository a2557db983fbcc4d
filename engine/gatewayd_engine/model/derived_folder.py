"""Folders in the user's cache that complete a model: links to its files, and texts made of them.

A folder's path depends on everything in it and on the state of the files that its texts were made
of, so a changed file or another version of this code makes another folder. A folder that has other
contents is damaged, and made once more. Imports no torch.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.process.file_writes import sync

_DIGEST_LENGTH = 32


class FileState(NamedTuple):
    """Path of a file, time of its last change in nanoseconds, and size in bytes."""

    path: str
    changed: int
    size: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        """Read the state of a file.

        Raises:
            OSError: it cannot be looked at.
        """
        state = path.stat()
        return cls(str(path), state.st_mtime_ns, state.st_size)


def derived_folder(
    kind: str,
    name: str,
    states: tuple[FileState, ...],
    links: Mapping[str, Path],
    texts: Mapping[str, str],
) -> Path:
    """Return a folder with these links and texts, which is made if it does not exist.

    Args:
        kind: folder in the cache.
        name: of the folder itself.
        states: of the files that the texts were made of, the first of which errors name.
        links: files by name.
        texts: contents by name.

    Raises:
        LoadError: the cache cannot be written, or others can write it.
    """
    cache = _cache(kind)
    digest = hashlib.sha256(repr((states, sorted(texts.items()))).encode()).hexdigest()
    folder = cache / digest[:_DIGEST_LENGTH] / name
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_foreign(cache)
        if _is_whole(folder, links, texts):
            return folder
        with tempfile.TemporaryDirectory(dir=cache, prefix=".") as made:
            inner = Path(made) / name
            _write(inner, links, texts)
            folder.parent.mkdir(exist_ok=True)
            if folder.is_symlink() or folder.exists():
                folder.rename(Path(made) / "damaged")
            # As a whole, so that no process finds half a folder.
            inner.rename(folder)
            sync(folder.parent)
    except OSError as error:
        if _is_whole(folder, links, texts):  # made by another process
            return folder
        raise LoadError(
            f"{cache} cannot be written, where the tokenizer and the configuration of"
            f" {Path(states[0].path).name} are stored: {error.strerror}; set XDG_CACHE_HOME to"
            " another folder"
        ) from error
    return folder


def _is_whole(folder: Path, links: Mapping[str, Path], texts: Mapping[str, str]) -> bool:
    """Whether a folder has these links and texts, and nothing else."""
    try:
        return (
            not folder.is_symlink()
            and {path.name for path in folder.iterdir()} == {*links, *texts}
            and all((folder / link).readlink() == part for link, part in links.items())
            and all((folder / text).read_bytes() == texts[text].encode() for text in texts)
        )
    except OSError:
        return False


def _write(folder: Path, links: Mapping[str, Path], texts: Mapping[str, str]) -> None:
    """Make a folder that survives a loss of power once it is renamed."""
    folder.mkdir()
    for link, part in links.items():
        (folder / link).symlink_to(part)
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())
        sync(folder / name)
    sync(folder)


def _refuse_foreign(cache: Path) -> None:
    """Refuse a folder where other users could put templates and links.

    Raises:
        LoadError: it is another user's, or others may write it.
    """
    state = cache.stat()
    if state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise LoadError(
            f"{cache} belongs to, or can be written by, other users; remove it, or set"
            " XDG_CACHE_HOME to another folder"
        )


def _cache(kind: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    if base and not Path(base).is_absolute():
        raise LoadError(f"XDG_CACHE_HOME is {base!r}; set it to an absolute path, or not at all")
    try:
        return Path(base if base else Path.home() / ".cache") / "gatewayd" / kind
    except RuntimeError as error:
        raise LoadError(f"{error}; set XDG_CACHE_HOME to a folder that can be written") from error
