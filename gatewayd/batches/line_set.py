"""Numbers of lines, a bit for each: a set of fifty thousand integers would be megabytes."""

from __future__ import annotations

from collections.abc import Iterable


class LineSet:
    """A set of numbers from 0; grows to its largest.

    Args:
        numbers: that are in it.
    """

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._bits = bytearray()
        for number in numbers:
            self.add(number)

    def add(self, number: int) -> None:
        """Put one in."""
        at, bit = divmod(number, 8)
        if at >= len(self._bits):
            self._bits.extend(bytes(max(at + 1, 2 * len(self._bits)) - len(self._bits)))
        self._bits[at] |= 1 << bit

    def __contains__(self, number: object) -> bool:
        """Whether it is in."""
        if not isinstance(number, int):
            return False
        at, bit = divmod(number, 8)
        return at < len(self._bits) and bool(self._bits[at] & (1 << bit))
