"""Finds delimiters in text that arrives in pieces of any length, for parsers of any family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Found(NamedTuple):
    """Certain part of a text.

    Attributes:
        text: before any delimiter, without the whitespace next to it.
        mark: the delimiter that follows, or None.
        rest: text after the delimiter, to be parsed further.
    """

    text: str
    mark: str | None = None
    rest: str = ""


class MarkFinder:
    """Scans up to delimiters. Whitespace next to them belongs to neither side and is dropped."""

    def __init__(self, marks: Sequence[str], *, is_behind: bool = False) -> None:
        """Start scanning.

        Args:
            marks: none empty, none a prefix of another.
            is_behind: whether the first text follows a delimiter.
        """
        self._marks = tuple(marks)
        self._held = ""
        self._is_behind = is_behind

    def feed(self, text: str) -> Found:
        """Scan more text, up to the first delimiter."""
        text = self._held + text
        if self._is_behind:
            text = text.lstrip()
        found = min(((text.find(mark), mark) for mark in self._marks if mark in text), default=None)
        if found is not None:
            at, mark = found
            self._held, self._is_behind = "", True
            return Found(text[:at].rstrip(), mark, text[at + len(mark) :])
        # Whitespace before a possible delimiter is held back, too: it is dropped if that is one.
        end = len(text[: len(text) - held_back(text, self._marks)].rstrip())
        self._held = text[end:]
        if end:
            self._is_behind = False
        return Found(text[:end])

    def finish(self) -> str:
        """Return what was held back at the end of the text."""
        held, self._held = self._held, ""
        return held


def held_back(text: str, marks: Sequence[str]) -> int:
    """Return how many characters at the end of a text may be the start of a delimiter.

    Args:
        text: contains no complete delimiter.
        marks: none empty.
    """
    longest = 0
    for mark in marks:
        for size in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:size]):
                longest = size
                break
    return longest
