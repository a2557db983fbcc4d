"""File format of the tuning table. Imports no torch."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

import msgspec


class TunedMachine(msgspec.Struct, frozen=True):
    """Machine that measurements are valid for.

    Attributes:
        chip: name of the chip.
        capability: compute capability, such as ``9.0``.
        versions: library versions, by name.
    """

    chip: str
    capability: str
    versions: dict[str, str]

    @property
    def digest(self) -> str:
        """File name of the machine's table."""
        # Sorted, as the order of versions must not change the name.
        return sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:16]


class Case(NamedTuple):
    """One decision: an operation on operands of certain sizes; create it with ``case``."""

    op: str
    dtype: str
    sizes: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return " ".join((self.op, self.dtype, *(f"{name}={size}" for name, size in self.sizes)))


def case(op: str, dtype: str, **sizes: int) -> Case:
    """Create a case: ``case("matmul", "bfloat16", m=8, n=6144, k=4096)``."""
    return Case(op, dtype, tuple(sizes.items()))


class TableEntry(msgspec.Struct, frozen=True):
    """Measurements of a case.

    Attributes:
        op, dtype, sizes: the case.
        default: the candidate that others had to beat.
        choice: the chosen candidate.
        microseconds: time of each candidate; None for one that failed.
        failing: smaller numbers of rows at which the choice fails, and the default is used.
    """

    op: str
    dtype: str
    sizes: dict[str, int]
    default: str
    choice: str
    microseconds: dict[str, float | None]
    failing: list[int] = []

    @property
    def case(self) -> Case:
        """The case of this entry."""
        return case(self.op, self.dtype, **self.sizes)


class TableContents(msgspec.Struct, frozen=True):
    """Contents of a table file.

    Attributes:
        machine: machine that it is valid for.
        entries: the measurements.
        excluded: candidate families that have crashed processes, as ``op family``.
        suspected: attempts during which one process crashed; a second one excludes the family.
    """

    machine: TunedMachine
    entries: list[TableEntry]
    excluded: list[str] = []
    suspected: list[str] = []
