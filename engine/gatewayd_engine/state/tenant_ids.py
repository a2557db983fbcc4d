"""Small numbers that stand for tenants: columns over sequences and pages hold these, not names."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_MANY = 4096
"""Tenants up to which nobody looks whether anything is left of them."""


class Tenants:
    """Numbers by name. One of whom nothing is left makes room for others in time.

    Args:
        many: tenants up to which none is forgotten.
    """

    def __init__(self, many: int = _MANY) -> None:
        self._many = self._due_at = many
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []  # of a number that nobody has, what it stood for last
        self._free: list[int] = []

    def number_of(self, name: str) -> int:
        """The number of a tenant; one that has none gets one."""
        number = self._numbers.get(name)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._names[number] = name
            else:
                number = len(self._names)
                self._names.append(name)
            self._numbers[name] = number
        return number

    def find(self, name: str) -> int | None:
        """The same, of one that has it already."""
        return self._numbers.get(name)

    def name(self, number: int) -> str:
        """Whom a number stands for."""
        return self._names[number]

    def __len__(self) -> int:
        """Numbers that were given: all are smaller."""
        return len(self._names)

    @property
    def is_due(self) -> bool:
        """Whether there are so many that it is time to ``keep`` some."""
        return len(self._numbers) > self._due_at

    def keep(self, numbers: Iterable[NDArray[np.integer]]) -> None:
        """Forget all tenants but some.

        Args:
            numbers: theirs, each shape ``[n]``; negative ones are nobody's.
        """
        is_kept = np.zeros(len(self._names), np.bool_)
        for some in numbers:
            is_kept[some[some >= 0]] = True
        gone = [name for name, number in self._numbers.items() if not is_kept[number]]
        # The last one is given first: whoever was forgotten long ago is replaced first.
        self._free = [self._numbers.pop(name) for name in gone][::-1] + self._free
        # The next look costs no more for each newcomer than this one did.
        self._due_at = max(self._many, 2 * len(self._numbers))
