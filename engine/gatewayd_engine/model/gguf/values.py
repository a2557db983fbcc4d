"""Values of GGUF metadata: numbers, texts, and the arrays that are asked for."""

from __future__ import annotations

import struct
import sys
from array import array
from typing import NamedTuple, TypeAlias

from gatewayd_engine.model.gguf.untrusted_file import LENGTH, TYPE, UntrustedFile

LONGEST_TEXT = 1024
"""Limit in bytes of strings that are not asked for; longer ones are skipped."""
MOST_TEXTS = 1 << 23
"""Limit of strings in an array; they are skipped one by one, a few million per second."""
MOST_READ_TEXTS = 1 << 21
"""Limit of strings or numbers in an array that is read: Python takes some 60 bytes for each."""
LONGEST_READ_TEXT = 1 << 20
"""Limit in bytes of a string that is asked for, such as a chat template."""
MOST_READ_BYTES = 1 << 28
"""Limit of the strings of an array together."""
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


class SkippedValue(NamedTuple):
    """Placeholder of a value that was skipped; ``what`` describes it."""

    what: str


Numbers: TypeAlias = "array[int] | array[float]"
Value: TypeAlias = "int | float | bool | str | SkippedValue | list[str] | Numbers"


def read_value(file: UntrustedFile, key: str, code: int, *, is_wanted: bool) -> Value:
    """Read a value, or skip it if it is long.

    Args:
        file: at the value.
        key: of the value.
        code: number of its type.
        is_wanted: whether a long text or an array is read.

    Raises:
        LoadError: it is none, or longer than the rest of the file.
    """
    if code in _NUMBERS:
        number: int | float = file.number(_NUMBERS[code], key)
        if code != _BOOL:
            return number
        if number not in (0, 1):
            raise file.broken(f"{key} is {number}, which is neither true nor false")
        return bool(number)
    if code == _ARRAY:
        return _read_array(file, key, is_wanted=is_wanted)
    if code != _STRING:
        raise file.broken(f"{key} has the unknown type {code}")
    length = file.number(LENGTH, key)
    if is_wanted and length > LONGEST_READ_TEXT:
        raise file.broken(f"{key} has {length} bytes; at most {LONGEST_READ_TEXT} are read")
    if is_wanted or length <= LONGEST_TEXT:
        return file.text(length, key)
    file.skip(length, key)
    return SkippedValue(f"a text of {length} bytes")


def shown(value: Value | None) -> str:
    """Describe a value in an error message."""
    match value:
        case SkippedValue(what):
            return what
        case list() | array():
            return f"an array of {len(value)}"
        case str():
            return repr(value if len(value) <= 60 else f"{value[:57]}...")
        case _:
            return repr(value)


def _read_array(file: UntrustedFile, key: str, *, is_wanted: bool) -> Value:
    """Read an array; skip it unless wanted, since tokenizers have arrays of 100,000 strings."""
    code, length = file.number(TYPE, key), file.number(LENGTH, key)
    if code in _NUMBERS:
        size = length * _NUMBERS[code].size
        if is_wanted:
            if length > MOST_READ_TEXTS:
                raise file.broken(f"{key} has {length} numbers; at most {MOST_READ_TEXTS} are read")
            return _numbers(_FORMS[code], file.read(size, key))
        file.skip(size, key)
    elif code == _STRING:
        # Each string has at least its length, so impossible counts end before the loop.
        file.require(length * LENGTH.size, key)
        most = MOST_READ_TEXTS if is_wanted else MOST_TEXTS
        if length > most:
            raise file.broken(f"{key} has {length} texts; at most {most} are read")
        if is_wanted:
            return _texts(file, key, length)
        for _ in range(length):
            file.skip(file.number(LENGTH, key), key)
    else:
        inner = "arrays" if code == _ARRAY else f"type {code}"
        raise file.broken(f"{key} is an array of {inner}, which is not read")
    return SkippedValue(f"an array of {length}")


def _texts(file: UntrustedFile, key: str, count: int) -> list[str]:
    """Read the strings of an array, whose lengths a damaged file may have wrong."""
    found, total = [], 0
    for _ in range(count):
        length = file.number(LENGTH, key)
        total += length
        if length > LONGEST_READ_TEXT or total > MOST_READ_BYTES:
            raise file.broken(
                f"{key} has a text of {length} bytes, and {total} in all; at most"
                f" {LONGEST_READ_TEXT} and {MOST_READ_BYTES} are read"
            )
        found.append(file.text(length, key))
    return found


def _numbers(form: str, taken: bytes) -> Numbers:
    made: Numbers = array(form, taken)
    if sys.byteorder == "big":
        made.byteswap()
    return made
