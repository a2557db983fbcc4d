"""Finds marks in text that comes in pieces of any length: for parsers of any family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Found(NamedTuple):
    """What is certain of a text.

    Attributes:
        text: that is before any mark, without the space beside it.
        mark: that follows, or None.
        rest: what was read behind the mark; to be read on.
    """

    text: str
    mark: str | None = None
    rest: str = ""


class MarkFinder:
    """Reads up to marks. Space beside them belongs to neither side and is dropped."""

    def __init__(self, marks: Sequence[str], *, is_behind: bool = False) -> None:
        """Begin to read.

        Args:
            marks: none empty, none the beginning of another.
            is_behind: whether what comes first stands behind a mark.
        """
        self._marks = tuple(marks)
        self._held = ""
        self._is_behind = is_behind

    def feed(self, text: str) -> Found:
        """Take more, up to the first mark."""
        text = self._held + text
        if self._is_behind:
            text = text.lstrip()
        found = min(((text.find(mark), mark) for mark in self._marks if mark in text), default=None)
        if found is not None:
            at, mark = found
            self._held, self._is_behind = "", True
            return Found(text[:at].rstrip(), mark, text[at + len(mark) :])
        end = len(text[: len(text) - held_back(text, self._marks)].rstrip())
        self._held = text[end:]
        if end:
            self._is_behind = False
        return Found(text[:end])

    def finish(self) -> str:
        """The text has ended: what was held back."""
        held, self._held = self._held, ""
        return held


def held_back(text: str, marks: Sequence[str]) -> int:
    """Characters at the end of a text that may become a mark.

    Args:
        text: in which no mark is whole.
        marks: none empty.
    """
    longest = 0
    for mark in marks:
        for size in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:size]):
                longest = size
                break
    return longest
