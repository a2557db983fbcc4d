"""Tenant numbers: small integers for columns over sequences and pages, instead of names."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_MANY = 4096
"""Number of tenants below which unused numbers are not reclaimed."""


class Tenants:
    """Mapping of tenant names to numbers; numbers of unused tenants are reclaimed.

    Args:
        many: number of tenants below which none is reclaimed.
    """

    def __init__(self, many: int = _MANY) -> None:
        self._many = self._due_at = many
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []  # for a free number, the last name it stood for
        self._free: list[int] = []

    def number_of(self, name: str) -> int:
        """Return the number of a tenant, assigning one if it has none."""
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
        """Return the number of a tenant; None if it has none."""
        return self._numbers.get(name)

    def name(self, number: int) -> str:
        """Return the tenant name of a number."""
        return self._names[number]

    def __len__(self) -> int:
        """Upper bound of all assigned numbers."""
        return len(self._names)

    @property
    def is_due(self) -> bool:
        """Whether there are enough tenants to call ``retain_only``."""
        return len(self._numbers) > self._due_at

    def retain_only(self, numbers: Iterable[NDArray[np.integer]]) -> None:
        """Reclaim the numbers of all tenants except some.

        Args:
            numbers: tenants to retain, each shape ``[n]``; negative entries are ignored.
        """
        is_kept = np.zeros(len(self._names), np.bool_)
        for some in numbers:
            is_kept[some[some >= 0]] = True
        unused = [name for name, number in self._numbers.items() if not is_kept[number]]
        # Numbers are taken from the end: those reclaimed long ago are reused first.
        self._free = [self._numbers.pop(name) for name in unused][::-1] + self._free
        # Doubling keeps the cost per new tenant constant.
        self._due_at = max(self._many, 2 * len(self._numbers))
