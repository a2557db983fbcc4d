"""Keeps special tokens that clients spell from becoming special tokens.

A numbered mark stands for each spelled token while a template writes genuine ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gatewayd.errors import InvalidRequest

_PRIVATE_USE = range(0xE000, 0xF8FF)


class Hiding:
    """Hides what is spelled in values of JSON, and finds it again in the text made of them."""

    def __init__(self, special: re.Pattern[str], values: object) -> None:
        """Choose a mark.

        Args:
            special: finds special tokens.
            values: all that will be hidden.

        Raises:
            InvalidRequest: there is no character left to mark with.
        """
        self._special = special
        self._mark = _unused_character(values)
        self._spelled: list[str] = []

    def hide(self, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """The same value with marks, in all its strings and keys."""
        if isinstance(value, str):
            return self._special.sub(self._note, value)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(entry) for entry in value]
        return value

    def show(self, text: str) -> str:
        """Put back what the marks stand for."""
        marked = re.compile(f"{self._mark}([0-9]+){self._mark}")
        return marked.sub(lambda found: self._spelled[int(found[1])], text)

    def _note(self, found: re.Match[str]) -> str:
        self._spelled.append(found[0])
        return f"{self._mark}{len(self._spelled) - 1}{self._mark}"


def any_text(value: object, is_wanted: Callable[[str], bool]) -> bool:
    """Whether any string or key in a value of JSON is one that is looked for."""
    # Of each chat; twice as fast as going over ``_texts``.
    if isinstance(value, str):
        return is_wanted(value)
    if isinstance(value, list | tuple):
        for entry in value:
            if any_text(entry, is_wanted):
                return True
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            if is_wanted(key) or any_text(entry, is_wanted):
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
