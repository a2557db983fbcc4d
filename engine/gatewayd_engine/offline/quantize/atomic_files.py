"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

_UNFINISHED = ".unfinished"


class WriteError(Exception):
    """A file or a folder cannot be written; the sentence names it."""


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], **metadata: str) -> None:
    """Write a safetensors file.

    Args:
        path: of the file.
        tensors: by their names.
        metadata: one field at most, for the order of several is not fixed.

    Raises:
        WriteError: it cannot be written.
    """
    apart, seen = {}, set()
    for name, tensor in tensors.items():
        # The writer refuses tensors that share memory.
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in seen else tensor.contiguous()
        seen.add(place)

    def write(place: Path) -> None:
        place.touch()
        mode = place.stat().st_mode
        save_file(apart, place, metadata=metadata or {"format": "pt"})
        place.chmod(stat.S_IMODE(mode))  # it was for its owner alone, whatever the umask says

    _whole(path, write)


def write_json(path: Path, values: object) -> None:
    """Write a JSON file, indented.

    Raises:
        WriteError: it cannot be written.
    """
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    _whole(path, lambda place: place.write_text(text, "utf-8"))


def copy(source: Path, folder: Path) -> None:
    """Copy a file into a folder.

    Raises:
        WriteError: it cannot be read or written.
    """
    _whole(folder / source.name, lambda place: shutil.copyfile(source, place))


def move(folder: Path, to: Path) -> None:
    """Give a folder its name, at which nothing is.

    Raises:
        WriteError: it cannot be.
    """
    try:
        folder.rename(to)
        _settle(to.parent)
    except OSError as error:
        raise _cannot(to, error) from error


def make(folder: Path) -> None:
    """Make a folder, and those that it is in; it may be there.

    Raises:
        WriteError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot(folder, error) from error


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; it may be missing.

    Raises:
        WriteError: it cannot be removed.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise WriteError(f"cannot remove {error.filename or path}: {error.strerror}") from error


def tidy(folder: Path) -> None:
    """Remove what was being written when a process ended.

    Raises:
        WriteError: it cannot be removed.
    """
    for path in folder.glob(f"*{_UNFINISHED}"):
        remove(path)


def _whole(path: Path, write: Callable[[Path], Any]) -> None:
    place = path.with_name(path.name + _UNFINISHED)
    try:
        write(place)
        with place.open("rb+") as file:
            os.fsync(file.fileno())
        place.replace(path)
        _settle(path.parent)
    except (OSError, SafetensorError) as error:
        place.unlink(missing_ok=True)
        raise _cannot(path, error) from error


def _settle(folder: Path) -> None:
    """See to it that names in a folder outlive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _cannot(path: Path, error: Exception) -> WriteError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return WriteError(f"cannot write {path}: {reason}")
