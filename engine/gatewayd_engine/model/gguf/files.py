"""Discovery and headers of a folder's GGUF files. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

from gatewayd_engine.model.gguf.experts import ExpertSplitter
from gatewayd_engine.model.gguf.header import Header, Tensor, read_header
from gatewayd_engine.model.gguf.names import (
    ARCHITECTURES,
    FREQUENCIES,
    OF_HEADS,
    ONE_ROW,
    renamed,
)
from gatewayd_engine.model.gguf.types import FLOATS
from gatewayd_engine.model.gguf.values import Value, shown
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_hooks.quantization import Announcement

METHOD = "gguf"
SHARD = re.compile(r"(?P<stem>.+)-(?P<at>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")
"""Name of a part of a model in several files."""


class GgufFiles(NamedTuple):
    """Headers of a GGUF checkpoint.

    Attributes:
        first: the file with the model's metadata.
        metadata: of that file.
        architecture: llama.cpp's name of it.
        tensors: files and locations by Hugging Face names.
        frequencies: file and location of RoPE frequency factors, if stored.
    """

    first: Path
    metadata: dict[str, Value]
    architecture: str
    tensors: dict[str, tuple[Path, Tensor]]
    frequencies: tuple[Path, Tensor] | None


def has_gguf(folder: Path) -> bool:
    """Whether a folder's weights are GGUF; safetensors take precedence."""
    return folder.is_dir() and not any(folder.glob("*.safetensors")) and bool(_gguf(folder))


def announcement(files: GgufFiles) -> Announcement:
    """Return the equivalent of a ``quantization_config``: types of all quantized matrices."""
    types = {
        name.removesuffix(".weight"): tensor.type
        for name, (_, tensor) in files.tensors.items()
        if tensor.type not in FLOATS
    }
    return Announcement({"quant_method": METHOD, "types": types}, f"{files.first.name}: header")


def read_files(folder: Path) -> GgufFiles:
    """Read the headers of all GGUF files of a folder.

    Raises:
        LoadError: a header is broken, a part is missing, or the content is not supported.
    """
    return read_parts(_whole(folder, _gguf(folder)))


def parts_of(path: Path) -> list[Path]:
    """Return all files of a model, in order.

    Args:
        path: one of them, or a folder with nothing but these.

    Raises:
        LoadError: there is no such file, a part is missing, or a folder has several models.
    """
    if path.is_dir():
        return _whole(path, _gguf(path))
    if not path.is_file():
        raise LoadError(f"{path} is no file")
    part = SHARD.fullmatch(path.name)
    if part is None:
        return [path]
    found = [
        other
        for other in _gguf(path.parent)
        if (match := SHARD.fullmatch(other.name)) and match.group(1, 3) == part.group(1, 3)
    ]
    return _whole(path.parent, found)


def read_parts(paths: Sequence[Path], wanted: Container[str] = ()) -> GgufFiles:
    """Read the headers of all files of a model.

    Args:
        paths: in order.
        wanted: keys whose values are read whatever their length.

    Raises:
        LoadError: a header is broken, a part is missing, or the content is not supported.
    """
    headers = [read_header(path, wanted) for path in paths]
    metadata = headers[0].metadata
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise LoadError(
            f"{paths[0].name}: general.architecture is {shown(architecture)}; read are"
            f" {', '.join(ARCHITECTURES)}"
        )
    # A part that was renamed looks like a whole model by its name.
    if metadata.get("split.count", 1) not in (0, 1) and len(paths) == 1:
        raise LoadError(
            f"{paths[0].name}: split.count is {metadata['split.count']}, but the other parts are"
            " missing; put all of them in one folder, under their original names"
        )
    experts = ExpertSplitter.from_metadata(paths[0].name, metadata, architecture)
    tensors, frequencies = _tensors(paths, headers, architecture, experts)
    return GgufFiles(paths[0], metadata, architecture, tensors, frequencies)


def _tensors(
    paths: Sequence[Path], headers: Sequence[Header], architecture: str, experts: ExpertSplitter
) -> tuple[dict[str, tuple[Path, Tensor]], tuple[Path, Tensor] | None]:
    found: dict[str, tuple[Path, Tensor]] = {}
    frequencies = None
    for path, header in zip(paths, headers, strict=True):
        for name, tensor in header.tensors.items():
            # No tensor of the model; they are compared with config.json later.
            if name == FREQUENCIES:
                frequencies = (path, tensor)
                continue
            full = renamed(name, architecture)
            if full is None:
                raise LoadError(f"{path.name}: tensor {name} is none of a {architecture} model")
            if full.endswith(ONE_ROW) and len(tensor.shape) == 1:
                tensor = tensor._replace(shape=(1, *tensor.shape))
            if full.endswith(OF_HEADS):
                tensor = tensor._replace(shape=_one_below_the_other(path.name, name, tensor))
            for single, part in experts.split(path.name, name, full, tensor):
                if single in found:
                    raise LoadError(
                        f"tensor {name} is in {found[single][0].name} and again in {path.name}"
                    )
                found[single] = (path, part)
    return found, frequencies


def _one_below_the_other(file: str, name: str, tensor: Tensor) -> tuple[int, int]:
    """Return the shape of the matrices of all heads as one.

    Raises:
        LoadError: the tensor is not a matrix for each head.
    """
    if len(tensor.shape) != 3:
        raise LoadError(
            f"{file}: {name} is {list(tensor.shape)}; it must have three dimensions, of which the"
            " first is the number of heads"
        )
    heads, rows, columns = tensor.shape
    return heads * rows, columns


def _gguf(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == ".gguf")


def _whole(folder: Path, paths: list[Path]) -> list[Path]:
    """Return the parts of one model in order.

    Raises:
        LoadError: a part is missing, or there are several models.
    """
    if not paths:
        raise LoadError(f"{folder} holds no gguf file")
    parts = [SHARD.fullmatch(path.name) for path in paths]
    if len(paths) == 1 and parts[0] is None:
        return paths
    models = {
        (part[1], part[3]) if part else (path.name, "")
        for part, path in zip(parts, paths, strict=True)
    }
    if len(models) > 1:
        raise LoadError(
            f"{folder} holds more than one model, {paths[0].name} and {paths[-1].name}; leave the"
            " one that is to be served"
        )
    ((stem, count),) = models
    # Bounded by the files present: a count in a file name must not trigger thousands of look-ups.
    for number, path in enumerate(paths, 1):
        if path.name != f"{stem}-{number:05}-of-{count}.gguf":
            raise LoadError(f"{folder} lacks {stem}-{number:05}-of-{count}.gguf")
    if len(paths) != int(count):
        raise LoadError(f"{folder} lacks {stem}-{len(paths) + 1:05}-of-{count}.gguf")
    return paths
