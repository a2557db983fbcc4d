"""Typed access to GGUF metadata; errors name the file, the key and the value."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

from gatewayd_engine.model.gguf.values import Value, shown
from gatewayd_engine.model.loading.safetensors_headers import LoadError

LARGEST_SIZE = (1 << 31) - 1


class GgufFields:
    """Metadata whose values are checked as they are read.

    Args:
        metadata: by key.
        where: name of the file, for error messages.

    Attributes:
        where: as given.

    All methods raise LoadError for a value of another type, or one that is required and absent.
    """

    def __init__(self, metadata: Mapping[str, Value], where: str) -> None:
        self._metadata = metadata
        self.where = where

    def __contains__(self, key: str) -> bool:
        return key in self._metadata

    def size(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return an integer between ``least`` and 2^31 - 1."""
        value = self._or_default(key, default)
        if type(value) is not int or not least <= value <= LARGEST_SIZE:
            raise self.wrong(key, f"an integer from {least} to {LARGEST_SIZE}")
        return value

    def optional_size(self, key: str, *, least: int = 1) -> int | None:
        """Return an integer as ``size`` does; None if it is absent."""
        return self.size(key, least=least) if key in self else None

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number above zero."""
        value = self._or_default(key, default)
        if type(value) not in (int, float):
            raise self.wrong(key, "a number")
        number = float(value)  # type: ignore[arg-type]
        if not (number > 0 and math.isfinite(number)):
            raise self.wrong(key, "a number above 0")
        return number

    def optional_number(self, key: str) -> float | None:
        """Return a finite number above zero; None if it is absent."""
        return self.number(key) if key in self else None

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._or_default(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._or_default(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def texts(self, key: str) -> list[str]:
        """Return an array of strings."""
        value = self._or_default(key, None)
        if not isinstance(value, list):
            raise self.wrong(key, "an array of texts")
        return value

    def numbers(self, key: str, length: int) -> array[int] | array[float] | None:
        """Return an array of ``length`` numbers; None if it is absent."""
        value = self._metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, array) or len(value) != length:
            raise self.wrong(key, f"an array of {length} numbers")
        return value

    def wrong(self, key: str, expected: str) -> LoadError:
        """Make the error of a value that is not what is expected."""
        found = self._metadata.get(key)
        return LoadError(f"{self.where}: {key} must be {expected}, not {shown(found)}")

    def _or_default(self, key: str, default: object) -> object:
        value = self._metadata.get(key, default)
        if value is None:
            raise LoadError(f"{self.where} lacks {key}")
        return value
