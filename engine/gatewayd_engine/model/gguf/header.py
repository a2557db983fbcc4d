"""Parsing of untrusted GGUF headers. Imports no torch.

Memory is bounded by ``MOST_KEYS``, ``MOST_TENSORS`` and the size of the file: every length is
compared with the rest of the file before anything is read or allocated.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

from gatewayd_engine.model.gguf.types import NAMES, SIZES
from gatewayd_engine.model.loading.safetensors_headers import LoadError

MOST_KEYS = 4096
MOST_TENSORS = 16_384
LONGEST_NAME = 200
LONGEST_TEXT = 1024
"""Limit in bytes of strings that are returned; longer ones, such as chat templates, are skipped."""
MOST_DIMENSIONS = 4
MOST_TEXTS = 1 << 23
"""Limit of strings in an array; they are skipped one by one, a few million per second."""
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
_LEAST_ALIGNMENT, _MOST_ALIGNMENT = 8, 1 << 20
_BOOL, _STRING, _ARRAY = 7, 8, 9
_FORMS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    _BOOL: "B",
    10: "Q",
    11: "q",
    12: "d",
}
_NUMBERS = {code: struct.Struct(f"<{form}") for code, form in _FORMS.items()}
_LENGTH = struct.Struct("<Q")
_TYPE = struct.Struct("<I")
_LEAST_KEY = _LENGTH.size + _TYPE.size + 1
_LEAST_TENSOR = 2 * _LENGTH.size + 2 * _TYPE.size


class SkippedValue(NamedTuple):
    """Placeholder of a value that was skipped; ``what`` describes it."""

    what: str


Value: TypeAlias = int | float | bool | str | SkippedValue


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


def read_header(path: Path) -> Header:
    """Read and validate the header of a file.

    Raises:
        LoadError: the file cannot be read, is incomplete or inconsistent, or has a tensor type
            that is not supported; the message names the file and the field.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return _Reader(file, path, size).header()
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror}") from error


class _Reader:
    """Sequential reader that never reads past the end of its file."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self._file = file
        self._path = path
        self._size = size
        self._at = 0

    def header(self) -> Header:
        self._check_magic()
        num_tensors = self._count("tensors", MOST_TENSORS, _LEAST_TENSOR)
        num_keys = self._count("keys", MOST_KEYS, _LEAST_KEY)
        metadata: dict[str, Value] = {}
        for number in range(num_keys):
            key = self._name(f"key {number}")
            if key in metadata:
                raise self._broken(f"{key} is duplicated")
            metadata[key] = self._value(key, self._number(_TYPE, key))
        # 32 is the format's default.
        alignment = metadata.get(_ALIGNMENT, 32)
        if (
            type(alignment) is not int
            or not _LEAST_ALIGNMENT <= alignment <= _MOST_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            shown = alignment.what if isinstance(alignment, SkippedValue) else repr(alignment)
            raise self._broken(
                f"{_ALIGNMENT} is {shown}; it must be a power of two from"
                f" {_LEAST_ALIGNMENT} to {_MOST_ALIGNMENT}"
            )
        tensors: dict[str, Tensor] = {}
        for number in range(num_tensors):
            name = self._name(f"tensor {number}")
            if name in tensors:
                raise self._broken(f"tensor {name} is duplicated")
            tensors[name] = self._tensor(name, alignment)
        # Offsets are relative to the end of the header, padded to the alignment.
        begin = -(-self._at // alignment) * alignment
        tensors = {name: t._replace(begin=t.begin + begin) for name, t in tensors.items()}
        self._check(tensors)
        return Header(metadata, tensors)

    def _check_magic(self) -> None:
        # As far as there is a file: an empty one is no GGUF file rather than a truncated one.
        magic = self._read_bytes(min(len(_MAGIC), self._size), "the magic")
        if magic != _MAGIC:
            raise LoadError(f"{self._path} is no GGUF file: it begins with {magic!r}")
        version = self._number(_TYPE, "the version")
        if version in _VERSIONS:
            return
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        shown = f"{swapped}, big-endian" if swapped in _VERSIONS else str(version)
        raise LoadError(f"{self._path} is GGUF of version {shown}; read are 2 and 3, little-endian")

    def _count(self, what: str, most: int, least_bytes: int) -> int:
        count = self._number(_LENGTH, f"the number of {what}")
        if count > most:
            raise self._broken(f"it says that it has {count} {what}; at most {most} are read")
        # Before the first entry is read: a count that the file cannot hold ends here.
        self._has(count * least_bytes, f"its {count} {what}")
        return count

    def _name(self, what: str) -> str:
        length = self._number(_LENGTH, f"the name of {what}")
        if not 0 < length <= LONGEST_NAME:
            raise self._broken(
                f"the name of {what} is of {length} bytes; it must be of 1 to {LONGEST_NAME}"
            )
        name = self._text(self._read_bytes(length, f"the name of {what}"), f"the name of {what}")
        # Names appear in messages and logs.
        if not name.isprintable():
            raise self._broken(f"the name of {what} has characters that cannot be shown: {name!a}")
        return name

    def _text(self, taken: bytes, what: str) -> str:
        try:
            return taken.decode()
        except UnicodeDecodeError:
            raise self._broken(f"{what} is no UTF-8: {taken[:40]!r}") from None

    def _value(self, key: str, code: int) -> Value:
        if code in _NUMBERS:
            number: int | float = self._number(_NUMBERS[code], key)
            if code != _BOOL:
                return number
            if number not in (0, 1):
                raise self._broken(f"{key} is {number}, which is neither true nor false")
            return bool(number)
        if code == _ARRAY:
            return self._skip_array(key)
        if code != _STRING:
            raise self._broken(f"{key} has the unknown type {code}")
        length = self._number(_LENGTH, key)
        if length <= LONGEST_TEXT:
            return self._text(self._read_bytes(length, key), key)
        self._skip(length, key)
        return SkippedValue(f"a text of {length} bytes")

    def _skip_array(self, key: str) -> SkippedValue:
        """Skip an array: tokenizers have arrays of 100,000 strings, and none is needed."""
        code, length = self._number(_TYPE, key), self._number(_LENGTH, key)
        if code in _NUMBERS:
            self._skip(length * _NUMBERS[code].size, key)
        elif code == _STRING:
            # Each string has at least its length, so impossible counts end before the loop.
            self._has(length * _LENGTH.size, key)
            if length > MOST_TEXTS:
                raise self._broken(f"{key} has {length} texts; at most {MOST_TEXTS} are read")
            for _ in range(length):
                self._skip(self._number(_LENGTH, key), key)
        else:
            inner = "arrays" if code == _ARRAY else f"type {code}"
            raise self._broken(f"{key} is an array of {inner}, which is not read")
        return SkippedValue(f"an array of {length}")

    def _tensor(self, name: str, alignment: int) -> Tensor:
        """Read one tensor entry; ``begin`` is relative to the end of the header."""
        count = self._number(_TYPE, name)
        if not 1 <= count <= MOST_DIMENSIONS:
            raise self._broken(f"{name} has {count} dimensions; 1 to {MOST_DIMENSIONS} are read")
        # GGUF lists the fastest dimension first.
        shape = tuple(self._number(_LENGTH, name) for _ in range(count))[::-1]
        code, offset = self._number(_TYPE, name), self._number(_LENGTH, name)
        kind = NAMES.get(code, f"number {code}")
        if kind not in SIZES:
            raise LoadError(
                f"{self._path}: {name} is of type {kind}; read are {', '.join(SIZES)}, so"
                " quantize it to one of these"
            )
        if 0 in shape:
            raise self._broken(f"{name} is {_shown(shape)}: it has no numbers")
        block, nbytes = SIZES[kind]
        if shape[-1] % block:
            raise self._broken(
                f"{name} is {kind} {_shown(shape)}, but rows of {kind} are in blocks of {block}"
            )
        if offset % alignment:
            raise self._broken(f"{name} begins at {offset}, no multiple of {alignment}")
        return Tensor(kind, shape, offset, math.prod(shape) // block * nbytes)

    def _check(self, tensors: dict[str, Tensor]) -> None:
        """Check that tensors do not overlap and lie within the file.

        Raises:
            LoadError: they do not.
        """
        end, before = 0, ""
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
            # Sorted by offset, so it suffices to compare neighbours.
            if tensor.begin < end:
                raise self._broken(f"{before} and {name} overlap")
            end, before = tensor.begin + tensor.nbytes, name
            if end > self._size:
                raise self._broken(
                    f"{name} ends at byte {end}, the file at {self._size}: it is truncated"
                )

    def _number(self, form: struct.Struct, what: str) -> int:
        (number,) = form.unpack(self._read_bytes(form.size, what))
        return number  # type: ignore[no-any-return]  # a float for float formats

    def _read_bytes(self, count: int, what: str) -> bytes:
        self._has(count, what)
        taken = self._file.read(count)
        # The size was read before: the file may be written to meanwhile.
        if len(taken) < count:
            raise self._broken(f"it became shorter while {what} was read")
        self._at += count
        return taken

    def _skip(self, count: int, what: str) -> None:
        self._has(count, what)
        self._at += count
        self._file.seek(self._at)

    def _has(self, count: int, what: str) -> None:
        left = self._size - self._at
        if count > left:
            raise self._broken(f"{what} takes {count} bytes, of {self._size} there are {left} left")

    def _broken(self, reason: str) -> LoadError:
        return LoadError(f"{self._path} is not a whole GGUF file: {reason}")


def _shown(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
