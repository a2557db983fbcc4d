"""A bit set of line numbers: a set of fifty thousand integers would take megabytes."""

from __future__ import annotations

from collections.abc import Iterable


class LineSet:
    """A set of non-negative integers; its size follows the largest.

    Args:
        numbers: initial members.
    """

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._bits = bytearray()
        for number in numbers:
            self.add(number)

    def add(self, number: int) -> None:
        """Add a number."""
        at, bit = divmod(number, 8)
        if at >= len(self._bits):
            # Doubles, so that adding numbers in order takes linear time.
            self._bits.extend(bytes(max(at + 1, 2 * len(self._bits)) - len(self._bits)))
        self._bits[at] |= 1 << bit

    def __contains__(self, number: object) -> bool:
        """Whether a number is a member."""
        if not isinstance(number, int):
            return False
        at, bit = divmod(number, 8)
        return at < len(self._bits) and bool(self._bits[at] & (1 << bit))
