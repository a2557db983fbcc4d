"""Typed access to a checkpoint's JSON files; errors name the file, the key and the value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LARGEST_SIZE = 1 << 31
LARGEST_NUMBER = 1e12


_LONGEST_MESSAGE = 1500


class SpecError(ValueError):
    """The model description is invalid or unsupported; the message names the field and why.

    Files are untrusted: of their text a message is one printable line of bounded length.
    """

    def __init__(self, message: str) -> None:
        if len(message) > _LONGEST_MESSAGE:
            message = message[: _LONGEST_MESSAGE - 3] + "..."
        super().__init__("".join(c if c.isprintable() else " " for c in message))


class JsonFields:
    """A JSON object whose values are checked as they are read. A null counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    @classmethod
    def of_file(cls, path: Path) -> JsonFields:
        """Read a JSON object.

        Raises:
            SpecError: the file is missing, unreadable or not a JSON object.
        """
        try:
            values = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise SpecError(f"{path} does not exist; a model folder needs it") from None
        except (OSError, ValueError, RecursionError) as error:
            raise SpecError(f"{path} cannot be read as JSON: {error}") from error
        if not isinstance(values, dict):
            raise SpecError(f"{path} must hold a JSON object, not {type(values).__name__}")
        return cls(values, path.name)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def raw(self, key: str) -> object:
        """Return a value unchecked, None when absent."""
        return self._values.get(key)

    def size(self, key: str, default: int | None = None, most: int = LARGEST_SIZE - 1) -> int:
        """Return a positive integer of at most ``most``."""
        value = self._or_default(key, default)
        # A bool is an int in Python.
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "a positive integer")
        if not 0 < value <= most:
            raise self._wrong(key, f"between 1 and {most}")
        return value

    def count(self, key: str, default: int | None = None, most: int = LARGEST_SIZE - 1) -> int:
        """Return a non-negative integer of at most ``most``."""
        value = self._or_default(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise self._wrong(key, f"an integer from 0 to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number above zero."""
        value = self._or_default(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number")
        # False for NaN and infinities, too, which Python's JSON parser accepts.
        if not 0 < value <= LARGEST_NUMBER:
            raise self._wrong(key, f"above 0 and at most {LARGEST_NUMBER:.0e}")
        return float(value)

    def optional_number(self, key: str, default: float | None = None) -> float | None:
        """Return a number above zero; None for a null, the default for an absent key."""
        if key not in self._values:
            return default
        return None if self._values[key] is None else self.number(key)

    def optional_size(self, key: str, default: int | None = None) -> int | None:
        """Return a positive integer; None for a null, the default for an absent key."""
        if key not in self._values:
            return default
        return None if self._values[key] is None else self.size(key)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._or_default(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        """Return a string."""
        value = self._or_default(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return a list of strings, None when absent."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, "a list of strings")
        return tuple(value)

    def indices(self, key: str) -> tuple[int, ...]:
        """Return one or more non-negative integers, given alone or as a list; empty if absent."""
        value = self.raw(key)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        if not all(type(item) is int and 0 <= item < LARGEST_SIZE for item in items):
            raise self._wrong(key, "one or more integers from 0")
        return tuple(items)

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        """Return a list of exactly ``length`` numbers above zero."""
        value = self.raw(key)
        if (
            not isinstance(value, list)
            or len(value) != length
            or not all(type(item) in (int, float) and 0 < item <= LARGEST_NUMBER for item in value)
        ):
            raise self._wrong(key, f"a list of {length} numbers above 0")
        return tuple(float(item) for item in value)

    def inner(self, key: str) -> JsonFields | None:
        """Return a nested object, None when absent."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return JsonFields(value, f"{self.where}: {key}")

    @property
    def values(self) -> Mapping[str, Any]:
        """The object, unchecked."""
        return self._values

    def over(self, defaults: Mapping[str, Any], fixed: Mapping[str, Any]) -> JsonFields:
        """Return the object with values for absent keys, and with some values replaced."""
        given = {key: value for key, value in self._values.items() if value is not None}
        return JsonFields({**self._values, **defaults, **given, **fixed}, self.where)

    def _or_default(self, key: str, default: object) -> object:
        value = self._values.get(key)
        value = default if value is None else value
        if value is None:
            raise SpecError(f"{self.where} lacks {key}")
        return value

    def _wrong(self, key: str, expected: str) -> SpecError:
        shown = repr(self._values.get(key))
        # Untrusted files may have values of any length.
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return SpecError(f"{self.where}: {key} must be {expected}, not {shown}")
