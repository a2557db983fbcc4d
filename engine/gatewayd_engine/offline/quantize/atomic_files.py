"""Atomic and durable writing of files: a file appears complete or not at all."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from gatewayd_engine.process.file_writes import sync

_UNFINISHED = ".unfinished"


class WriteError(Exception):
    """A file or a folder cannot be written; the message names it."""


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], **metadata: str) -> None:
    """Write a safetensors file.

    Args:
        path: of the file.
        tensors: by their names.
        metadata: one field at most, because the order of several is not deterministic.

    Raises:
        WriteError: it cannot be written.
    """
    separate, seen = {}, set()
    for name, tensor in tensors.items():
        # safetensors refuses tensors that share memory.
        address = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if address in seen else tensor.contiguous()
        seen.add(address)

    def write(path: Path) -> None:
        # Created with the umask, to read the mode that the file should have.
        path.touch()
        mode = path.stat().st_mode
        save_file(separate, path, metadata=metadata or {"format": "pt"})
        path.chmod(stat.S_IMODE(mode))  # save_file ignores the umask and writes mode 0600

    _write_atomically(path, write)


def write_json(path: Path, values: object) -> None:
    """Write a JSON file, indented.

    Raises:
        WriteError: it cannot be written.
    """
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    _write_atomically(path, lambda temporary: temporary.write_text(text, "utf-8"))


def copy(source: Path, folder: Path) -> None:
    """Copy a file into a folder.

    Raises:
        WriteError: it cannot be read or written.
    """
    _write_atomically(folder / source.name, lambda temporary: shutil.copyfile(source, temporary))


def move(folder: Path, to: Path) -> None:
    """Rename a file or folder to a path that does not exist yet.

    Raises:
        WriteError: it cannot be renamed.
    """
    try:
        folder.rename(to)
        sync(to.parent)
    except OSError as error:
        raise _write_error(to, error) from error


def make(folder: Path) -> None:
    """Create a folder and its parents; it may exist.

    Raises:
        WriteError: it cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _write_error(folder, error) from error


def remove(path: Path) -> None:
    """Remove a file, or a folder with all its contents; it may be missing.

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


def remove_unfinished(folder: Path) -> None:
    """Remove temporary files that an interrupted process has left in a folder.

    Raises:
        WriteError: one cannot be removed.
    """
    for path in folder.glob(f"*{_UNFINISHED}"):
        remove(path)


def _write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    temporary = path.with_name(path.name + _UNFINISHED)
    try:
        write(temporary)
        # Contents before the name: after a loss of power, a file with this name is complete.
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise _write_error(path, error) from error


def _write_error(path: Path, error: Exception) -> WriteError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return WriteError(f"cannot write {path}: {reason}")
