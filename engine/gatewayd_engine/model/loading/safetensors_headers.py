"""Headers of safetensors files, checked before anything is mapped into memory. Imports no torch."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from gatewayd_hooks.quantization import Stored

LONGEST = 100_000_000
"""Bytes of a header; those who write such files keep to the same."""
LONGEST_NAME = 512
MOST_DIMENSIONS = 16
MOST_BYTES = 1 << 63
"""A number from here on is no size: products of many such ones take hours."""
_LENGTH_BYTES = 8
_MOST_SHOWN = 200
_SIZES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}


class LoadError(ValueError):
    """The weights cannot be loaded; the message names the file or the tensor."""


class _Place(NamedTuple):
    """Bytes of a tensor behind the header, from ``begin`` to before ``end``."""

    begin: int
    end: int
    name: str


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors of a file.

    Raises:
        LoadError: it cannot be read, is not whole, or contradicts itself.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, LONGEST):
                raise _broken(path, f"its header is of {length} bytes, the file of {size}")
            values = json.loads(file.read(length), object_pairs_hook=_once)
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, LoadError):
            raise
        raise _broken(path, f"its header is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise _broken(path, "its header is no JSON object")
    values.pop("__metadata__", None)
    found: dict[str, Stored] = {}
    places: list[_Place] = []
    for name, value in values.items():
        found[name], place = _entry(path, name, value)
        places.append(place)
    _check(path, sorted(places), size - _LENGTH_BYTES - length)
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"{shown(counts.most_common(1)[0][0])} is there twice")
    return values


def _entry(path: Path, name: str, value: object) -> tuple[Stored, _Place]:
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise _broken(
            path,
            f"the name {shown(name)} is of {len(name)} characters; names are of 1 to"
            f" {LONGEST_NAME} that can be shown",
        )
    entry = value if isinstance(value, dict) else {}
    dtype = entry.get("dtype")
    shape, offsets = _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or offsets is None:
        raise _broken(path, f"{name} has no dtype, shape and data_offsets that can be")
    if dtype not in _SIZES:
        known = ", ".join(_SIZES)
        raise LoadError(
            f"{path}: tensor {name} holds {shown(dtype)}, which is not known; known are {known}"
        )
    needed = math.prod(shape) * _SIZES[dtype]
    if len(offsets) != 2 or offsets[1] - offsets[0] != needed:
        raise _broken(path, f"{name} is {dtype} {shape}, {needed} bytes, but lies at {offsets}")
    return Stored(dtype, tuple(shape)), _Place(offsets[0], offsets[1], name)


def _sizes(value: object) -> list[int] | None:
    """A list of a few numbers that can be sizes, if it is one."""
    if not isinstance(value, list) or len(value) > MOST_DIMENSIONS:
        return None
    return value if all(type(each) is int and 0 <= each < MOST_BYTES for each in value) else None


def _check(path: Path, places: list[_Place], size: int) -> None:
    """Look at where tensors lie, in their order, in so many bytes."""
    end, before = 0, ""
    for place in places:
        if place.begin < end:
            raise _broken(path, f"{before} and {place.name} overlap")
        if place.begin > end:
            raise _broken(path, f"nothing is said of {place.begin - end} bytes before {place.name}")
        end, before = place.end, place.name
    if end > size:
        raise _broken(path, f"it ends {end - size} bytes before {before} does: it is cut")
    if end < size:
        raise _broken(path, f"nothing is said of its last {size - end} bytes")


def shown(text: str) -> str:
    """What a stranger wrote, for a sentence: its beginning, and nothing that a terminal obeys."""
    cut = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    return cut if cut.isprintable() else ascii(cut)


def _broken(path: Path, reason: str) -> LoadError:
    return LoadError(f"{path} is not a whole safetensors file: {reason}")
