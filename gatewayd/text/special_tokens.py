"""Protection against special-token injection by clients.

Special tokens spelled in a request are replaced by numbered marks while the template, which writes
genuine ones, is rendered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gatewayd.errors import InvalidRequest

_PRIVATE_USE = range(0xE000, 0xF8FF + 1)


class SpecialTokenEscaper:
    """Replaces special tokens spelled in JSON values by marks, and restores their text."""

    def __init__(self, special: re.Pattern[str], values: object) -> None:
        """Choose a mark character that occurs in none of the values.

        Args:
            special: pattern of special tokens.
            values: all values that will be escaped.

        Raises:
            InvalidRequest: the values use every possible mark character.
        """
        self._special = special
        self._mark = _unused_character(values)
        self._spelled: list[str] = []

    def escape(self, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Return the value with special tokens replaced by marks in all its strings and keys."""
        if isinstance(value, str):
            return self._special.sub(self._mark_of, value)
        if isinstance(value, Mapping):
            return {self.escape(key): self.escape(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self.escape(entry) for entry in value]
        return value

    def unescape(self, text: str) -> str:
        """Restore the special tokens' text in place of the marks."""
        # Delimited on both sides, so that digits in the text do not become part of a number.
        marked = re.compile(f"{self._mark}([0-9]+){self._mark}")
        return marked.sub(lambda found: self._spelled[int(found[1])], text)

    def _mark_of(self, found: re.Match[str]) -> str:
        self._spelled.append(found[0])
        return f"{self._mark}{len(self._spelled) - 1}{self._mark}"


def any_text(value: object, is_wanted: Callable[[str], bool]) -> bool:
    """Whether any string or key in a JSON value satisfies a predicate."""
    # Runs for each chat; four times as fast as iterating over ``_texts``: values of JSON are of
    # these very types, and most are text, which needs no call of its own.
    if isinstance(value, str):
        return is_wanted(value)
    if type(value) is dict or isinstance(value, Mapping):
        for key, entry in value.items():
            if is_wanted(key):
                return True
            if is_wanted(entry) if type(entry) is str else any_text(entry, is_wanted):
                return True
    elif isinstance(value, list | tuple):
        for entry in value:
            if is_wanted(entry) if type(entry) is str else any_text(entry, is_wanted):
                return True
    return False


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield key
            yield from _texts(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry)


def _unused_character(values: object) -> str:
    used: set[str] = set()
    for text in _texts(values):
        used.update(text)
    for code in _PRIVATE_USE:
        if chr(code) not in used:
            return chr(code)
    raise InvalidRequest("the messages use every private-use character", param="messages")
