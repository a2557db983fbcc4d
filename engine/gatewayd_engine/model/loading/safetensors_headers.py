"""Validation of safetensors headers before files are mapped into memory. Imports no torch."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from gatewayd_hooks.quantization import Stored

LONGEST = 100_000_000
"""Limit of the header in bytes, the same as that of the safetensors library."""
LONGEST_NAME = 512
MOST_DIMENSIONS = 16
MOST_BYTES = 1 << 63
"""Sizes from here on are refused: products of many arbitrarily long integers would take hours."""
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


class _ByteRange(NamedTuple):
    """Bytes of a tensor after the header, from ``begin`` to before ``end``."""

    begin: int
    end: int
    name: str


def read_header(path: Path) -> dict[str, Stored]:
    """Read and validate the header of a file.

    Raises:
        LoadError: the file cannot be read, is incomplete, or is inconsistent.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            # Before the header is read: the length is untrusted, up to 2 ** 64.
            if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, LONGEST):
                raise _broken(path, f"its header is of {length} bytes, the file of {size}")
            values = json.loads(file.read(length), object_pairs_hook=_refuse_duplicates)
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        # A LoadError is a ValueError, too.
        if isinstance(error, LoadError):
            raise
        raise _broken(path, f"its header is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise _broken(path, "its header is no JSON object")
    # The only entry that is no tensor.
    values.pop("__metadata__", None)
    found: dict[str, Stored] = {}
    ranges: list[_ByteRange] = []
    for name, value in values.items():
        found[name], byte_range = _entry(path, name, value)
        ranges.append(byte_range)
    # By begin, then end: tensors without elements precede the one at the same offset.
    _check(path, sorted(ranges), size - _LENGTH_BYTES - length)
    return found


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Python's parser would silently keep the last of two tensors with one name.
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"{shown(counts.most_common(1)[0][0])} is duplicated")
    return values


def _entry(path: Path, name: str, value: object) -> tuple[Stored, _ByteRange]:
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise _broken(
            path,
            f"the name {shown(name)} is of {len(name)} characters; names must have 1 to"
            f" {LONGEST_NAME} printable characters",
        )
    entry = value if isinstance(value, dict) else {}
    dtype = entry.get("dtype")
    shape, offsets = _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or offsets is None:
        raise _broken(path, f"{name} has no valid dtype, shape and data_offsets")
    if dtype not in _SIZES:
        known = ", ".join(_SIZES)
        raise LoadError(
            f"{path}: tensor {name} has the unknown dtype {shown(dtype)}; supported are {known}"
        )
    # Python's integers do not overflow, whatever sizes a header claims.
    needed = math.prod(shape) * _SIZES[dtype]
    if len(offsets) != 2 or offsets[1] - offsets[0] != needed:
        raise _broken(path, f"{name} is {dtype} {shape}, {needed} bytes, but lies at {offsets}")
    return Stored(dtype, tuple(shape)), _ByteRange(offsets[0], offsets[1], name)


def _sizes(value: object) -> list[int] | None:
    """Return a JSON value if it is a short list of valid sizes, else None."""
    if not isinstance(value, list) or len(value) > MOST_DIMENSIONS:
        return None
    # ``type`` and not ``isinstance``, because a bool is an int in Python.
    return value if all(type(each) is int and 0 <= each < MOST_BYTES for each in value) else None


def _check(path: Path, ranges: list[_ByteRange], size: int) -> None:
    """Check that tensors, sorted by offset, cover exactly ``size`` bytes without overlap.

    Raises:
        LoadError: they do not.
    """
    end, before = 0, ""
    for each in ranges:
        if each.begin < end:
            raise _broken(path, f"{before} and {each.name} overlap")
        if each.begin > end:
            raise _broken(path, f"{each.begin - end} bytes before {each.name} belong to no tensor")
        end, before = each.end, each.name
    if end > size:
        raise _broken(path, f"it ends {end - size} bytes before {before} does: it is truncated")
    if end < size:
        raise _broken(path, f"its last {size - end} bytes belong to no tensor")


def shown(text: str) -> str:
    """Truncate untrusted text for an error message, and escape it unless it is printable."""
    cut = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    return cut if cut.isprintable() else ascii(cut)


def _broken(path: Path, reason: str) -> LoadError:
    return LoadError(f"{path} is not a whole safetensors file: {reason}")
