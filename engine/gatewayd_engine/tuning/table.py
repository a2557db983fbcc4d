"""The tuning table: which implementation is fastest on this machine, measured once.

Imports no torch, so that the command line can show it. A file holds the choices of one machine,
which is its chip and the versions of all that computes on it; other versions start anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from gatewayd_engine.tuning.cache_files import read, write
from gatewayd_engine.tuning.crash_guard import Attempt, Attempts
from gatewayd_engine.tuning.exclusions import Exclusions
from gatewayd_engine.tuning.fastest import fastest, usable
from gatewayd_engine.tuning.table_contents import (
    Case,
    TableContents,
    TableEntry,
    TunedMachine,
    case,
)

__all__ = [
    "Case",
    "DeviceLost",
    "NoMemory",
    "TableContents",
    "TableEntry",
    "TunedMachine",
    "TuningTable",
    "case",
    "load",
]

_log = logging.getLogger(__name__)


class DeviceLost(Exception):
    """After a candidate nothing can be computed any more in this process."""


class NoMemory(Exception):
    """The device has too little memory at the moment; nothing follows from that for a candidate."""


class TuningTable:
    """The choices of one machine.

    Args:
        machine: this one.
        folder: where tables are kept; None keeps nothing.

    Attributes:
        path: of its file; None for none.
        measured: how many cases were measured by this process.
    """

    def __init__(self, machine: TunedMachine, folder: Path | None = None) -> None:
        self.path = None if folder is None else folder / f"{machine.digest}.json"
        self.measured = 0
        self._machine = machine
        self._entries: dict[Case, TableEntry] = {}
        self._exclusions = Exclusions(self.path)
        self._attempts = Attempts(folder, machine.digest)
        self._take_over()
        if died := self._attempts.fatal():
            self._save(lambda: self._exclusions.count(died))

    @property
    def entries(self) -> list[TableEntry]:
        """All that is known, in the order of their cases."""
        return [self._entries[case] for case in sorted(self._entries)]

    def known(self, case: Case, candidates: Sequence[str]) -> str | None:
        """What was chosen among these candidates before; None if that was not measured.

        Only the default may be used without asking ``chosen``, which checks all others.
        """
        entry = self._entry(case, candidates)
        return None if entry is None else entry.choice

    def chosen(
        self,
        case: Case,
        candidates: Sequence[str],
        measure: Callable[[str], float],
        check: Callable[[str], None],
    ) -> str:
        """The fastest candidate that computes the same: from the table, or measured now.

        What is known holds as long as the candidates are the same. But files are edited and chips
        fail, so a known choice other than the default is checked before it is used. If that fails,
        a warning says so, and the candidate is noted like one that failed when it was measured:
        later processes leave it alone. The fastest of the others takes its place, by the times that
        are known and after a check of its own; the default, which needs none, if none is faster.

        Args:
            case: what is to be decided.
            candidates: names; the first is the default, which others have to beat by ``MARGIN``.
                What is before the first space names a family: whichever ends two processes in a
                row while it is checked or measured, by a fault or because it hangs, is left out of
                later ones with all of its family.
            measure: microseconds of a candidate; what it raises takes that one out, but for
                ``DeviceLost`` and ``NoMemory``.
            check: raises if a candidate's answer is not the default's, or cannot be had. Every
                other candidate passes it before it is measured, and again in each process that
                finds it chosen.

        Returns:
            A name among ``candidates``.

        Raises:
            DeviceLost: by ``check`` or ``measure``. Later processes leave out that candidate's
                family.
            NoMemory: by ``check`` or ``measure``. Nothing is kept.
        """
        entry = self._entry(case, candidates)
        if entry is not None:
            return self._checked(case, entry, check)
        default, found = candidates[0], dict[str, float | None]()
        for name in self._allowed(case, candidates):
            try:
                if name == default:
                    found[name] = usable(measure(name))
                    continue
                with self._trying(case, name):
                    check(name)
                    found[name] = usable(measure(name))
            except (DeviceLost, NoMemory):
                raise
            except Exception as error:  # noqa: BLE001 - of any kind, there are other candidates
                _log.info("%s is no candidate for %s: %s", name, case, _first_line(error))
                found[name] = None
        choice = fastest(found, default)
        self._keep(TableEntry(case.op, case.dtype, dict(case.sizes), default, choice, found))
        self.measured += 1
        return choice

    def passing(self, case: Case, sizes: Sequence[int], check: Callable[[int], None]) -> list[int]:
        """Those of some numbers of lines at which the choice of a case computes the same.

        Where it fails, the default is to be used. That is kept, with one warning for all of them,
        and not tried again by later processes, until something else is chosen for the case.

        Args:
            case: for which ``chosen`` took another candidate than the default.
            sizes: numbers of lines, other than the one for which it was chosen.
            check: raises if the choice's answer of so many lines is not the default's, or cannot be
                had.

        Raises:
            DeviceLost: by ``check``. Later processes leave out the choice's family.
            NoMemory: by ``check``. Nothing is kept.
        """
        entry, failed = self._entries[case], dict[int, Exception]()
        left = [size for size in sizes if size not in entry.failing]
        if not left:
            return []
        # One attempt of all: many sizes are checked at each start.
        with self._trying(case, f"{entry.choice} at other numbers of lines"):
            for size in left:
                try:
                    check(size)
                except (DeviceLost, NoMemory):
                    raise
                except Exception as error:  # noqa: BLE001 - of any kind, the default remains
                    failed[size] = error
        if failed:
            _log.warning(
                "%s was chosen for %s but fails its check at %s lines; %s is used there from now"
                " on, to try again delete %s: %s",
                entry.choice,
                case,
                ", ".join(map(str, failed)),
                entry.default,
                self.path,
                _first_line(next(iter(failed.values()))),
            )
            self._keep(replace(entry, failing=sorted({*entry.failing, *failed})))
        return [size for size in left if size not in failed]

    @contextmanager
    def _trying(self, case: Case, name: str) -> Iterator[None]:
        """Leave word that a candidate runs, so that what ends processes is not tried for ever.

        Not to be nested.

        Args:
            case: what is to be decided.
            name: of the candidate; not the default, without which nothing could be computed.

        Raises:
            DeviceLost: by what runs. Later processes leave out the candidate's family.
        """
        attempt = Attempt(f"{case.op} {_family(name)}", f"{name}, {case}")
        with self._attempts.trying(attempt):
            try:
                yield
            except DeviceLost:
                self._exclusions.families.add(attempt.family)
                self._save()
                raise
            except NoMemory:
                raise
            except Exception:
                self._survived(attempt)
                raise
        self._survived(attempt)

    def _survived(self, attempt: Attempt) -> None:
        """Suspect an attempt no longer: only deaths in a row count."""
        if attempt.what in self._exclusions.suspected:
            self._save(lambda: self._exclusions.suspected.discard(attempt.what))

    def _checked(self, case: Case, entry: TableEntry, check: Callable[[str], None]) -> str:
        """The choice of an entry, or what takes its place; see ``chosen``."""
        while (choice := entry.choice) != entry.default:
            try:
                with self._trying(case, choice):
                    check(choice)
                break
            except (DeviceLost, NoMemory):
                raise
            except Exception as error:  # noqa: BLE001 - of any kind, the default remains
                times = {**entry.microseconds, choice: None}
                other = fastest(times, entry.default)
                _log.warning(
                    "%s was chosen for %s but fails its check; %s is used from now on, to measure"
                    " again delete %s: %s",
                    choice,
                    case,
                    other,
                    self.path,
                    _first_line(error),
                )
                entry = replace(entry, choice=other, microseconds=times, failing=[])
                self._keep(entry)
        return choice

    def _entry(self, case: Case, candidates: Sequence[str]) -> TableEntry | None:
        """What is known, if it was measured among these candidates, with the same default."""
        entry = self._entries.get(case)
        if entry is None or entry.default != candidates[0]:
            return None
        return entry if set(entry.microseconds) == set(self._allowed(case, candidates)) else None

    def _allowed(self, case: Case, candidates: Sequence[str]) -> list[str]:
        (default, *others), out = candidates, self._exclusions.families
        return [default, *(n for n in others if f"{case.op} {_family(n)}" not in out)]

    def _keep(self, entry: TableEntry) -> None:
        self._entries[entry.case] = entry
        self._save()

    def _take_over(self) -> None:
        """Take over what the file says."""
        contents = read(self.path, TableContents)
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
        self._exclusions.take_over(contents)

    def _save(self, change: Callable[[], object] = lambda: None) -> None:
        """Write the file anew.

        Args:
            change: of what is suspected, where what the file says goes first.
        """
        # Another engine of this machine may have measured meanwhile; what is here goes first.
        self._take_over()
        change()
        excluded, suspected = self._exclusions.families, self._exclusions.suspected
        contents = TableContents(self._machine, self.entries, sorted(excluded), sorted(suspected))
        write(self.path, contents)


def load(path: Path) -> TableContents | None:
    """What a table's file says; None if nothing can be read there."""
    return read(path, TableContents)


def _family(name: str) -> str:
    return name.partition(" ")[0]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
