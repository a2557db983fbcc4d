"""Parsing of untrusted GGUF headers. Imports no torch.

Memory is bounded by ``MOST_KEYS``, ``MOST_TENSORS`` and the size of the file: every length is
compared with the rest of the file before anything is read or allocated.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

from gatewayd_engine.model.gguf.types import NAMES, SIZES
from gatewayd_engine.model.gguf.untrusted_file import LENGTH, TYPE, UntrustedFile
from gatewayd_engine.model.gguf.values import Value, read_value, shown
from gatewayd_engine.model.loading.safetensors_headers import LoadError

MOST_KEYS = 4096
MOST_TENSORS = 16_384
LONGEST_NAME = 200
MOST_DIMENSIONS = 4
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
_LEAST_ALIGNMENT, _MOST_ALIGNMENT = 8, 1 << 20
_LEAST_KEY = LENGTH.size + TYPE.size + 1
_LEAST_TENSOR = 2 * LENGTH.size + 2 * TYPE.size


class Tensor(NamedTuple):
    """Location of a tensor in a file.

    Attributes:
        type: llama.cpp's name of it, such as ``Q4_K``.
        shape: row-major, slowest dimension first as in torch: ``[rows, columns]``.
        begin: offset of its first byte in the file.
        nbytes: its size in bytes.
    """

    type: str
    shape: tuple[int, ...]
    begin: int
    nbytes: int


class Header(NamedTuple):
    """Header of a file: ``metadata`` by key, ``tensors`` by name."""

    metadata: dict[str, Value]
    tensors: dict[str, Tensor]


def read_header(path: Path, wanted: Container[str] = ()) -> Header:
    """Read and validate the header of a file.

    Args:
        path: of the file.
        wanted: keys whose values are read whatever their length; others are skipped if long.

    Raises:
        LoadError: the file cannot be read, is incomplete or inconsistent, or has a tensor type
            that is not supported; the message names the file and the field.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return _read(UntrustedFile(file, path, size), wanted)
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror}") from error


def _read(file: UntrustedFile, wanted: Container[str]) -> Header:
    _check_magic(file)
    num_tensors = _count(file, "tensors", MOST_TENSORS, _LEAST_TENSOR)
    num_keys = _count(file, "keys", MOST_KEYS, _LEAST_KEY)
    metadata: dict[str, Value] = {}
    for number in range(num_keys):
        key = _name(file, f"key {number}")
        if key in metadata:
            raise file.broken(f"{key} is duplicated")
        code = file.number(TYPE, key)
        metadata[key] = read_value(file, key, code, is_wanted=key in wanted)
    # 32 is the format's default.
    alignment = metadata.get(_ALIGNMENT, 32)
    if (
        type(alignment) is not int
        or not _LEAST_ALIGNMENT <= alignment <= _MOST_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        raise file.broken(
            f"{_ALIGNMENT} is {shown(alignment)}; it must be a power of two from"
            f" {_LEAST_ALIGNMENT} to {_MOST_ALIGNMENT}"
        )
    tensors: dict[str, Tensor] = {}
    for number in range(num_tensors):
        name = _name(file, f"tensor {number}")
        if name in tensors:
            raise file.broken(f"tensor {name} is duplicated")
        tensors[name] = _tensor(file, name, alignment)
    # Offsets are relative to the end of the header, padded to the alignment.
    begin = -(-file.at // alignment) * alignment
    tensors = {name: t._replace(begin=t.begin + begin) for name, t in tensors.items()}
    _check(file, tensors)
    return Header(metadata, tensors)


def _check_magic(file: UntrustedFile) -> None:
    # As far as there is a file: an empty one is no GGUF file rather than a truncated one.
    magic = file.read(min(len(_MAGIC), file.size), "the magic")
    if magic != _MAGIC:
        raise LoadError(f"{file.path} is no GGUF file: it begins with {magic!r}")
    version = file.number(TYPE, "the version")
    if version in _VERSIONS:
        return
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    said = f"{swapped}, big-endian" if swapped in _VERSIONS else str(version)
    raise LoadError(f"{file.path} is GGUF of version {said}; read are 2 and 3, little-endian")


def _count(file: UntrustedFile, what: str, most: int, least_bytes: int) -> int:
    count = file.number(LENGTH, f"the number of {what}")
    if count > most:
        raise file.broken(f"it says that it has {count} {what}; at most {most} are read")
    # Before the first entry is read: a count that the file cannot hold ends here.
    file.require(count * least_bytes, f"its {count} {what}")
    return count


def _name(file: UntrustedFile, what: str) -> str:
    length = file.number(LENGTH, f"the name of {what}")
    if not 0 < length <= LONGEST_NAME:
        raise file.broken(
            f"the name of {what} is of {length} bytes; it must be of 1 to {LONGEST_NAME}"
        )
    name = file.text(length, f"the name of {what}")
    # Names appear in messages and logs.
    if not name.isprintable():
        raise file.broken(f"the name of {what} has characters that cannot be shown: {name!a}")
    return name


def _tensor(file: UntrustedFile, name: str, alignment: int) -> Tensor:
    """Read one tensor entry; ``begin`` is relative to the end of the header."""
    count = file.number(TYPE, name)
    if not 1 <= count <= MOST_DIMENSIONS:
        raise file.broken(f"{name} has {count} dimensions; 1 to {MOST_DIMENSIONS} are read")
    # GGUF lists the fastest dimension first.
    shape = tuple(file.number(LENGTH, name) for _ in range(count))[::-1]
    code, offset = file.number(TYPE, name), file.number(LENGTH, name)
    kind = NAMES.get(code, f"number {code}")
    if kind not in SIZES:
        raise LoadError(
            f"{file.path}: {name} is of type {kind}; read are {', '.join(SIZES)}, so"
            " quantize it to one of these"
        )
    if 0 in shape:
        raise file.broken(f"{name} is {_dimensions(shape)}: it has no numbers")
    block, nbytes = SIZES[kind]
    if shape[-1] % block:
        raise file.broken(
            f"{name} is {kind} {_dimensions(shape)}, but rows of {kind} are in blocks of {block}"
        )
    if offset % alignment:
        raise file.broken(f"{name} begins at {offset}, no multiple of {alignment}")
    return Tensor(kind, shape, offset, math.prod(shape) // block * nbytes)


def _check(file: UntrustedFile, tensors: dict[str, Tensor]) -> None:
    """Check that tensors do not overlap and lie within the file.

    Raises:
        LoadError: they do not.
    """
    end, before = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
        # Sorted by offset, so it suffices to compare neighbours.
        if tensor.begin < end:
            raise file.broken(f"{before} and {name} overlap")
        end, before = tensor.begin + tensor.nbytes, name
        if end > file.size:
            raise file.broken(
                f"{name} ends at byte {end}, the file at {file.size}: it is truncated"
            )


def _dimensions(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
