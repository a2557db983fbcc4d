"""What a tuning table keeps on disk. Imports no torch."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

import msgspec


class TunedMachine(msgspec.Struct, frozen=True):
    """What a measurement holds for.

    Attributes:
        chip: its name.
        capability: compute capability, such as ``9.0``.
        versions: of what computes, by name.
    """

    chip: str
    capability: str
    versions: dict[str, str]

    @property
    def digest(self) -> str:
        """Names its file."""
        return sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:16]


class Case(NamedTuple):
    """One decision: an operation on operands of certain sizes; make it with ``case``."""

    op: str
    dtype: str
    sizes: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return " ".join((self.op, self.dtype, *(f"{name}={size}" for name, size in self.sizes)))


def case(op: str, dtype: str, **sizes: int) -> Case:
    """A case: ``case("product", "bfloat16", m=8, n=6144, k=4096)``."""
    return Case(op, dtype, tuple(sizes.items()))


class TableEntry(msgspec.Struct, frozen=True):
    """What was measured for a case.

    Attributes:
        op, dtype, sizes: the case.
        default: the candidate that others had to beat.
        choice: the one that is used.
        microseconds: of each candidate; None for one that failed.
        failing: smaller numbers of lines at which the choice fails, and the default is used.
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
        """Whose it is."""
        return case(self.op, self.dtype, **self.sizes)


class TableContents(msgspec.Struct, frozen=True):
    """A table's file.

    Attributes:
        machine: for which it holds.
        entries: what was measured.
        excluded: candidates that have ended processes, as ``op family``.
        suspected: attempts during which one process ended; if another one does, see ``excluded``.
    """

    machine: TunedMachine
    entries: list[TableEntry]
    excluded: list[str] = []
    suspected: list[str] = []
