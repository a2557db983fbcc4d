"""The tuning table: which implementation is fastest on this machine, measured once.

Imports no torch, so that the command line can show it. A file holds the choices of one machine,
which is its chip and the versions of all that computes on it; other versions start anew.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec

from gatewayd_engine.tuning.attempts import Attempts
from gatewayd_engine.tuning.files import read, write

MARGIN = 0.02
"""Part of the default's time that another candidate has to save to be chosen."""
_log = logging.getLogger(__name__)


class Machine(msgspec.Struct, frozen=True):
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


class Entry(msgspec.Struct, frozen=True):
    """What was measured for a case.

    Attributes:
        op, dtype, sizes: the case.
        default: the candidate that others had to beat.
        choice: the one that is used.
        microseconds: of each candidate; None for one that failed.
    """

    op: str
    dtype: str
    sizes: dict[str, int]
    default: str
    choice: str
    microseconds: dict[str, float | None]

    @property
    def case(self) -> Case:
        """Whose it is."""
        return case(self.op, self.dtype, **self.sizes)


class Contents(msgspec.Struct, frozen=True):
    """A table's file.

    Attributes:
        machine: for which it holds.
        entries: what was measured.
        excluded: candidates that have ended a process, as ``op family``.
    """

    machine: Machine
    entries: list[Entry]
    excluded: list[str] = []


class Lost(Exception):
    """After a candidate nothing can be computed any more in this process."""


class Table:
    """The choices of one machine.

    Args:
        machine: this one.
        folder: where tables are kept; None keeps nothing.

    Attributes:
        path: of its file; None for none.
        measured: how many cases were measured by this process.
    """

    def __init__(self, machine: Machine, folder: Path | None = None) -> None:
        self.path = None if folder is None else folder / f"{machine.digest}.json"
        self.measured = 0
        self._machine = machine
        self._entries: dict[Case, Entry] = {}
        self._excluded: set[str] = set()
        self._attempts = Attempts(None if folder is None else folder, machine.digest)
        self._take_over()
        dead = set(self._attempts.fatal())
        for name in dead - self._excluded:
            _log.warning(
                "a process ended while it measured %s, which is not used any more; to try it"
                " again, delete %s",
                name,
                self.path,
            )
        if dead - self._excluded:
            self._excluded |= dead
            self._save()

    @property
    def entries(self) -> list[Entry]:
        """All that is known, in the order of their cases."""
        return [self._entries[case] for case in sorted(self._entries)]

    def known(self, case: Case, candidates: Sequence[str]) -> str | None:
        """What was chosen among these candidates before; None if that was not measured."""
        entry = self._entries.get(case)
        if entry is None or set(entry.microseconds) != set(self._allowed(case, candidates)):
            return None
        return entry.choice

    def chosen(self, case: Case, candidates: Sequence[str], measure: Callable[[str], float]) -> str:
        """The fastest candidate: from the table, or measured now.

        What is known holds as long as the candidates are the same.

        Args:
            case: what is to be decided.
            candidates: names; the first is the default, which others have to beat by ``MARGIN``.
                What is before the first space names a family: whichever ends the process while it
                is measured, by a fault or because it hangs, is left out of later ones with all of
                its family.
            measure: microseconds of a candidate; whatever it raises takes that one out.

        Returns:
            A name among ``candidates``.

        Raises:
            Lost: by ``measure``. Later processes leave out the family of that candidate.
        """
        if (known := self.known(case, candidates)) is not None:
            return known
        default, allowed = candidates[0], self._allowed(case, candidates)
        found: dict[str, float | None] = {}
        with self._attempts:
            for name in allowed:
                family = f"{case.op} {_family(name)}"
                if name != default:
                    self._attempts.begin(family)
                try:
                    found[name] = _measured(case, name, measure)
                except Lost:
                    if name != default:
                        self._excluded.add(family)
                        self._save()
                    raise
        choice = _best(found, default)
        sizes = dict(case.sizes)
        self._entries[case] = Entry(case.op, case.dtype, sizes, default, choice, found)
        self.measured += 1
        self._save()
        return choice

    def _allowed(self, case: Case, candidates: Sequence[str]) -> list[str]:
        default, *others = candidates
        return [default, *(n for n in others if f"{case.op} {_family(n)}" not in self._excluded)]

    def _take_over(self) -> None:
        """Take over what the file says."""
        contents = read(self.path, Contents)
        if contents is None:
            return
        if contents.machine != self._machine:
            _log.warning("%s is of another machine and is not used", self.path)
            return
        self._entries = {
            entry.case: entry
            for entry in contents.entries
            if {entry.choice, entry.default} <= set(entry.microseconds)
        } | self._entries
        self._excluded |= set(contents.excluded)

    def _save(self) -> None:
        # Another engine of this machine may have measured meanwhile; what is here goes first.
        self._take_over()
        write(self.path, Contents(self._machine, self.entries, sorted(self._excluded)))


def load(path: Path) -> Contents | None:
    """What a table's file says; None if nothing can be read there."""
    return read(path, Contents)


def _family(name: str) -> str:
    return name.partition(" ")[0]


def _measured(case: Case, name: str, measure: Callable[[str], float]) -> float | None:
    try:
        microseconds = measure(name)
    except Lost:
        raise
    except Exception as error:  # noqa: BLE001 - of any kind, there are other candidates
        _log.info("%s is no candidate for %s: %s", name, case, _first_line(error))
        return None
    return microseconds if math.isfinite(microseconds) and microseconds > 0 else None


def _best(found: dict[str, float | None], default: str) -> str:
    times = {name: time for name, time in found.items() if time is not None}
    base = times.get(default)
    if base is None:
        return default
    best = min(times, key=lambda name: times[name])
    return best if times[best] < base * (1 - MARGIN) else default


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
