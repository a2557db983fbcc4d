"""Access to the tensors in a checkpoint's files; headers are read first, data on demand.

Only safetensors is read here, and GGUF in ``gguf``: other formats can run code.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open

from gatewayd_engine.model.loading.safetensors_headers import LoadError, read_header
from gatewayd_engine.model.loading.shards import weight_files
from gatewayd_hooks.quantization import Stored


class TensorSource(Protocol):
    """Named tensors, read one by one.

    Attributes:
        stored: forms of all tensors, by name.
    """

    stored: dict[str, Stored]

    def where(self, name: str) -> str:
        """Return the file name of a tensor, for error messages."""

    def read(self, name: str) -> torch.Tensor:
        """Read a tensor as stored.

        Raises:
            LoadError: it cannot be read.
        """

    def close(self) -> None:
        """Close the files."""


class _File(Protocol):
    """Interface of safetensors' untyped file class."""

    def get_tensor(self, name: str) -> torch.Tensor: ...

    def get_slice(self, name: str) -> _Slice: ...


class _Slice(Protocol):
    """Interface of safetensors' untyped class of a tensor that is read in slices."""

    def __getitem__(self, index: tuple[slice, ...]) -> torch.Tensor: ...


class SafetensorsSource:
    """Tensor source of a folder's safetensors files.

    Args:
        folder: with the files.
        rename: returns the name of a stored tensor, None for one that is not wanted.

    Raises:
        LoadError: a file is missing or broken, or two files contain the same tensor.
    """

    def __init__(self, folder: Path, rename: Callable[[str], str | None] = str) -> None:
        self.stored: dict[str, Stored] = {}
        self._home: dict[str, Path] = {}
        self._in_file: dict[str, str] = {}
        self._open: dict[Path, _File] = {}
        # Headers of all files are validated first; none is mapped before a tensor of it is read.
        for path in weight_files(folder):
            for in_file, stored in read_header(path).items():
                name = rename(in_file)
                if name is None:
                    continue
                if name in self._home:
                    raise LoadError(
                        f"tensor {name} is in {self._home[name].name} and again in {path.name}"
                    )
                self._home[name] = path
                self._in_file[name] = in_file
                self.stored[name] = stored

    def where(self, name: str) -> str:
        """See ``TensorSource``."""
        return self._home[name].name

    def read(self, name: str) -> torch.Tensor:
        """See ``TensorSource``."""
        return self._read(name, lambda file: file.get_tensor(self._in_file[name]))

    def part(self, name: str, number: int, rows: slice) -> torch.Tensor:
        """Read some rows of one of the matrices of a three-dimensional tensor.

        Raises:
            LoadError: it cannot be read.
        """
        # safetensors reads the bytes of the slice only, not the whole stack.
        index = (slice(number, number + 1), rows)
        stack = self._in_file[name]
        return self._read(name, lambda file: file.get_slice(stack)[index]).squeeze(0)

    def _read(self, name: str, how: Callable[[_File], torch.Tensor]) -> torch.Tensor:
        path = self._home[name]
        try:
            if path not in self._open:
                self._open[path] = safe_open(path, framework="pt")
            return how(self._open[path])
        except (OSError, SafetensorError) as error:
            raise LoadError(f"{path}: {name} cannot be read: {error}") from error

    def close(self) -> None:
        """See ``TensorSource``: mapped files close with their last reference."""
        self._open.clear()
