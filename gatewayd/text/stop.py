"""Incremental matching of stop strings, independent of how tokens split the text.

The match that completes first wins; of those that complete at the same character, the longest.
This equals matching one character at a time. Only text that may still become a stop string is
withheld.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Stop-string matcher for one text.

    Attributes:
        matched: the stop string that ended the text, or None.
    """

    __slots__ = ("_held", "_include", "_reach", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """Start at the beginning of a text.

        Args:
            stops: strings of at least one character.
            include: whether the matched stop string is part of the text.
        """
        self._stops = tuple(stops)
        self._include = include
        # Maximum number of characters of an incomplete stop string.
        self._reach = max(len(stop) for stop in stops) - 1
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Feed text; return the text that can no longer be part of a stop string.

        Must not be called once ``matched`` is set.
        """
        text = self._held + text
        best_end, best_start = len(text) + 1, 0
        for stop in self._stops:
            start = text.find(stop)
            if start < 0:
                continue
            end = start + len(stop)
            if end < best_end or (end == best_end and start < best_start):
                best_end, best_start, self.matched = end, start, stop
        if self.matched is not None:
            self._held = ""
            return text[: best_end if self._include else best_start]
        cut = len(text) - self._holdback(text)
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """Return the withheld text at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _holdback(self, text: str) -> int:
        """Return the length of the longest suffix of ``text`` that is a prefix of a stop string."""
        # `text[-0:]` would be all of it.
        tail = text[-self._reach :] if self._reach else ""
        longest = 0
        for stop in self._stops:
            # From left to right: the first suffix that fits is the longest one.
            at = tail.find(stop[0])
            while at >= 0 and len(tail) - at > longest:
                if stop.startswith(tail[at:]):
                    longest = len(tail) - at
                    break
                at = tail.find(stop[0], at + 1)
        return longest
