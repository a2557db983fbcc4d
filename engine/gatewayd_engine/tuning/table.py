"""The tuning table: the fastest implementation of each operation on this machine, measured once.

Imports no torch, so that the command line can show it. A file holds the choices of one machine,
identified by chip and library versions; other versions start with an empty table.
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
    """After a candidate's fault, the device is unusable in this process."""


class NoMemory(Exception):
    """The device has too little memory at the moment; this says nothing about a candidate."""


class TuningTable:
    """The choices of one machine.

    Args:
        machine: this machine.
        folder: folder of the tables; None to keep the table in memory only.

    Attributes:
        path: file of the table; None for none.
        measured: number of cases measured by this process.
    """

    def __init__(self, machine: TunedMachine, folder: Path | None = None) -> None:
        self.path = None if folder is None else folder / f"{machine.digest}.json"
        self.measured = 0
        self._machine = machine
        self._entries: dict[Case, TableEntry] = {}
        self._exclusions = Exclusions(self.path)
        self._attempts = Attempts(folder, machine.digest)
        # Exclusions and suspicions of earlier processes, which a new crash is compared with.
        self._merge_file()
        if crashed := self._attempts.collect_fatal():
            self._save(lambda: self._exclusions.record_crashes(crashed))

    @property
    def entries(self) -> list[TableEntry]:
        """All entries, in the order of their cases."""
        return [self._entries[case] for case in sorted(self._entries)]

    def known(self, case: Case, candidates: Sequence[str]) -> str | None:
        """Return the choice measured earlier among these candidates; None if there is none.

        Only the default may be used without calling ``chosen``, which checks all others.
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
        """Return the fastest correct candidate: from the table, or measured now.

        A known choice is valid as long as the candidates are the same. But files are edited and
        chips fail, so a known choice other than the default is checked before it is used. If that
        fails, a warning is logged, and the candidate is recorded like one that failed when it was
        measured, so later processes do not use it. It is replaced by the fastest of the others, by
        the known times and after a check of its own; by the default, which needs none, if none is
        faster.

        Args:
            case: the decision.
            candidates: names; the first is the default, which others have to beat by ``MARGIN``.
                The part before the first space names a family: if a candidate crashes two
                consecutive processes while it is checked or measured, by a fault or because it
                hangs, its whole family is excluded from later ones.
            measure: returns the microseconds of a candidate; an exception excludes that candidate,
                except for ``DeviceLost`` and ``NoMemory``.
            check: raises if a candidate's result differs from the default's, or cannot be
                computed. All candidates except the default are checked before they are measured,
                and again in each process that finds them chosen.

        Returns:
            A name among ``candidates``.

        Raises:
            DeviceLost: from ``check`` or ``measure``. Later processes exclude that candidate's
                family.
            NoMemory: from ``check`` or ``measure``. Nothing is recorded.
        """
        entry = self._entry(case, candidates)
        if entry is not None:
            return self._checked(case, entry, check)
        default, found = candidates[0], dict[str, float | None]()
        for name in self._allowed(case, candidates):
            try:
                # Not guarded: others are compared with it, and it has no replacement.
                if name == default:
                    found[name] = usable(measure(name))
                    continue
                with self._trying(case, name):
                    # Before it is measured: a wrong result disqualifies, however fast it is.
                    check(name)
                    found[name] = usable(measure(name))
            # Not a failed measurement: ``_trying`` excludes the family of a lost device itself.
            except (DeviceLost, NoMemory):
                raise
            except Exception as error:  # noqa: BLE001 - any error; there are other candidates
                _log.info("%s is not a candidate for %s: %s", name, case, _first_line(error))
                found[name] = None
        # Failed candidates are recorded as well: the set of names tells whether an entry is valid.
        choice = fastest(found, default)
        self._store(TableEntry(case.op, case.dtype, dict(case.sizes), default, choice, found))
        self.measured += 1
        return choice

    def passing(self, case: Case, sizes: Sequence[int], check: Callable[[int], None]) -> list[int]:
        """Return the sizes (numbers of rows) at which a case's choice passes its check.

        Where it fails, the default is to be used. Failures are recorded, with one warning for all,
        and not retried by later processes until something else is chosen for the case.

        Args:
            case: case for which ``chosen`` returned a candidate other than the default.
            sizes: numbers of rows, other than the one for which it was chosen.
            check: raises if the choice's result for so many rows differs from the default's, or
                cannot be computed.

        Raises:
            DeviceLost: from ``check``. Later processes exclude the choice's family.
            NoMemory: from ``check``. Nothing is recorded.
        """
        entry, failed = self._entries[case], dict[int, Exception]()
        left = [size for size in sizes if size not in entry.failing]
        if not left:
            return []
        # One attempt for all of them, because many sizes are checked at each start.
        with self._trying(case, f"{entry.choice} at other numbers of rows"):
            for size in left:
                try:
                    check(size)
                except (DeviceLost, NoMemory):
                    raise
                except Exception as error:  # noqa: BLE001 - any error; the default remains
                    failed[size] = error
        if failed:
            _log.warning(
                "%s was chosen for %s but fails its check at %s rows; %s is used there from now"
                " on, to try again delete %s: %s",
                entry.choice,
                case,
                ", ".join(map(str, failed)),
                entry.default,
                self.path,
                _first_line(next(iter(failed.values()))),
            )
            self._store(replace(entry, failing=sorted({*entry.failing, *failed})))
        return [size for size in left if size not in failed]

    @contextmanager
    def _trying(self, case: Case, name: str) -> Iterator[None]:
        """Record the attempt to run a candidate, for later processes in case it crashes this one.

        Not reentrant.

        Args:
            case: the decision.
            name: the candidate; not the default, which has no replacement.

        Raises:
            DeviceLost: from the context. Later processes exclude the candidate's family.
        """
        attempt = Attempt(f"{case.op} {_family(name)}", f"{name}, {case}")
        with self._attempts.trying(attempt):
            try:
                yield
            except DeviceLost:
                # At once: a lost device is no coincidence, and this process has to end.
                self._exclusions.families.add(attempt.family)
                self._save()
                raise
            # The attempt neither passed nor failed, so a suspicion remains.
            except NoMemory:
                raise
            except Exception:
                self._survived(attempt)
                raise
        self._survived(attempt)

    def _survived(self, attempt: Attempt) -> None:
        """Clear the suspicion of an attempt: only consecutive crashes count."""
        if attempt.what in self._exclusions.suspected:
            self._save(lambda: self._exclusions.suspected.discard(attempt.what))

    def _checked(self, case: Case, entry: TableEntry, check: Callable[[str], None]) -> str:
        """Return the checked choice of an entry, or its replacement; see ``chosen``."""
        # Ends: each round marks one candidate as failed, and ``fastest`` does not return those.
        while (choice := entry.choice) != entry.default:
            try:
                with self._trying(case, choice):
                    check(choice)
                break
            except (DeviceLost, NoMemory):
                raise
            except Exception as error:  # noqa: BLE001 - any error; the default remains
                # None is the time of a failed candidate.
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
                self._store(entry)
        return choice

    def _entry(self, case: Case, candidates: Sequence[str]) -> TableEntry | None:
        """Return an entry if it was measured among these candidates, with the same default."""
        entry = self._entries.get(case)
        if entry is None or entry.default != candidates[0]:
            return None
        # With other names (a candidate was added, removed or excluded) the choice may be outdated.
        return entry if set(entry.microseconds) == set(self._allowed(case, candidates)) else None

    def _allowed(self, case: Case, candidates: Sequence[str]) -> list[str]:
        (default, *others), out = candidates, self._exclusions.families
        return [default, *(n for n in others if f"{case.op} {_family(n)}" not in out)]

    def _store(self, entry: TableEntry) -> None:
        self._entries[entry.case] = entry
        self._save()

    def _merge_file(self) -> None:
        """Merge the contents of the file."""
        contents = read(self.path, TableContents)
        if contents is None:
            return
        # The digest in the file name is short, and files are copied and edited.
        if contents.machine != self._machine:
            _log.warning("autotuning table %s is of another machine and is not used", self.path)
            return
        # Edited files may name a choice that was never measured.
        self._entries = {
            entry.case: entry
            for entry in contents.entries
            if {entry.choice, entry.default} <= set(entry.microseconds)
        } | self._entries
        self._exclusions.merge(contents)

    def _save(self, change: Callable[[], object] = lambda: None) -> None:
        """Write the file.

        Args:
            change: changes the suspected attempts, after those in the file have been merged.
        """
        # Another engine of this machine may have measured meanwhile; own entries take precedence.
        # Not locked: an entry that a concurrent save loses is measured again.
        self._merge_file()
        change()
        excluded, suspected = self._exclusions.families, self._exclusions.suspected
        contents = TableContents(self._machine, self.entries, sorted(excluded), sorted(suspected))
        write(self.path, contents)


def load(path: Path) -> TableContents | None:
    """Read a table file; return None if it is missing or invalid."""
    return read(path, TableContents)


def _family(name: str) -> str:
    return name.partition(" ")[0]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
