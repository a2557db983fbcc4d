"""Headers of GGUF files, which are believed nothing. Imports no torch.

What a header makes remembered is bounded by ``MOST_KEYS`` and ``MOST_TENSORS``, and by the file's
size: a length is compared with what is left of the file before anything is read or made.
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
"""Bytes of a value that is remembered; those of chat templates are not asked for."""
MOST_DIMENSIONS = 4
MOST_TEXTS = 1 << 23
"""Of an array; one after the other is stepped over, a few million in a second."""
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


class Unkept(NamedTuple):
    """A value that is there and was not remembered; ``what`` says why."""

    what: str


Value: TypeAlias = int | float | bool | str | Unkept


class Tensor(NamedTuple):
    """A tensor of a file.

    Attributes:
        type: as llama.cpp calls it: ``Q4_K``.
        shape: as others say it, slowest first: ``[rows, columns]``.
        begin: its first byte in the file.
        nbytes: how many there are.
    """

    type: str
    shape: tuple[int, ...]
    begin: int
    nbytes: int


class Header(NamedTuple):
    """What a file says of itself: ``metadata`` by key, ``tensors`` by name."""

    metadata: dict[str, Value]
    tensors: dict[str, Tensor]


def read_header(path: Path) -> Header:
    """Read and check what stands before the numbers.

    Raises:
        LoadError: it cannot be read, is not whole, contradicts itself, or holds a type that is
            not read; one sentence with the file and the field.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return _Reader(file, path, size).header()
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror}") from error


class _Reader:
    """Reads forward through a file, and never past its end."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self._file = file
        self._path = path
        self._size = size
        self._at = 0

    def header(self) -> Header:
        self._begin()
        num_tensors = self._count("tensors", MOST_TENSORS, _LEAST_TENSOR)
        num_keys = self._count("keys", MOST_KEYS, _LEAST_KEY)
        metadata: dict[str, Value] = {}
        for number in range(num_keys):
            key = self._name(f"key {number}")
            if key in metadata:
                raise self._broken(f"{key} is there twice")
            metadata[key] = self._value(key, self._number(_TYPE, key))
        alignment = metadata.get(_ALIGNMENT, 32)
        if (
            type(alignment) is not int
            or not _LEAST_ALIGNMENT <= alignment <= _MOST_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            shown = alignment.what if isinstance(alignment, Unkept) else repr(alignment)
            raise self._broken(
                f"{_ALIGNMENT} is {shown}; it must be a power of two from"
                f" {_LEAST_ALIGNMENT} to {_MOST_ALIGNMENT}"
            )
        tensors: dict[str, Tensor] = {}
        for number in range(num_tensors):
            name = self._name(f"tensor {number}")
            if name in tensors:
                raise self._broken(f"tensor {name} is there twice")
            tensors[name] = self._tensor(name, alignment)
        # Offsets are counted from behind the header, once it is filled up.
        begin = -(-self._at // alignment) * alignment
        tensors = {name: t._replace(begin=t.begin + begin) for name, t in tensors.items()}
        self._check(tensors)
        return Header(metadata, tensors)

    def _begin(self) -> None:
        magic = self._take(min(len(_MAGIC), self._size), "the magic")
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
        self._has(count * least_bytes, f"its {count} {what}")
        return count

    def _name(self, what: str) -> str:
        length = self._number(_LENGTH, f"the name of {what}")
        if not 0 < length <= LONGEST_NAME:
            raise self._broken(
                f"the name of {what} is of {length} bytes; it must be of 1 to {LONGEST_NAME}"
            )
        name = self._text(self._take(length, f"the name of {what}"), f"the name of {what}")
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
            raise self._broken(f"{key} is of type {code}, which is not known")
        length = self._number(_LENGTH, key)
        if length <= LONGEST_TEXT:
            return self._text(self._take(length, key), key)
        self._skip(length, key)
        return Unkept(f"a text of {length} bytes")

    def _skip_array(self, key: str) -> Unkept:
        """Tokenizers have arrays of a hundred thousand; none of them is asked for."""
        code, length = self._number(_TYPE, key), self._number(_LENGTH, key)
        if code in _NUMBERS:
            self._skip(length * _NUMBERS[code].size, key)
        elif code == _STRING:
            self._has(length * _LENGTH.size, key)
            if length > MOST_TEXTS:
                raise self._broken(f"{key} has {length} texts; at most {MOST_TEXTS} are read")
            for _ in range(length):
                self._skip(self._number(_LENGTH, key), key)
        else:
            inner = "arrays" if code == _ARRAY else f"type {code}"
            raise self._broken(f"{key} is an array of {inner}, which is not read")
        return Unkept(f"an array of {length}")

    def _tensor(self, name: str, alignment: int) -> Tensor:
        """One entry; ``begin`` is counted from behind the header."""
        count = self._number(_TYPE, name)
        if not 1 <= count <= MOST_DIMENSIONS:
            raise self._broken(f"{name} has {count} dimensions; 1 to {MOST_DIMENSIONS} are read")
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
        """No two lie on each other, and none past the end."""
        end, before = 0, ""
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1].begin):
            if tensor.begin < end:
                raise self._broken(f"{before} and {name} overlap")
            end, before = tensor.begin + tensor.nbytes, name
            if end > self._size:
                raise self._broken(
                    f"{name} ends at byte {end}, the file at {self._size}: it is cut"
                )

    def _number(self, form: struct.Struct, what: str) -> int:
        (number,) = form.unpack(self._take(form.size, what))
        return number  # type: ignore[no-any-return]  # or a float, where the form is of one

    def _take(self, count: int, what: str) -> bytes:
        self._has(count, what)
        taken = self._file.read(count)
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
