"""Exclusion of candidates that have crashed processes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from gatewayd_engine.tuning.crash_guard import Attempt
from gatewayd_engine.tuning.table_contents import TableContents

_log = logging.getLogger(__name__)


class Exclusions:
    """Excluded candidates of one machine.

    A single crash proves nothing: a process may have been killed for memory, or by an operator. So
    the attempt is only suspected, and its family is excluded if the next process crashes in it as
    well.

    Args:
        path: file with the exclusions, for warnings.

    Attributes:
        families: excluded candidate families.
        suspected: attempts during which a process crashed, and which none has survived since.
    """

    def __init__(self, path: Path | None) -> None:
        self.families: set[str] = set()
        self.suspected: set[str] = set()
        self._path = path

    def merge(self, contents: TableContents) -> None:
        """Merge the contents of a file.

        Suspected attempts are replaced: other processes may have survived them.
        """
        self.families |= set(contents.excluded)
        self.suspected = set(contents.suspected)

    def record_crashes(self, crashed: Iterable[Attempt]) -> None:
        """Record the attempts during which processes crashed."""
        # A set: replicas that were killed together in one attempt count as one crash.
        for family, what in sorted(crashed):
            if what not in self.suspected:
                self.suspected.add(what)
                _log.warning("a process crashed while it tried %s; it is tried once more", what)
            elif family not in self.families:
                self.families.add(family)
                _log.warning(
                    "two processes crashed while they tried %s; %s is not used any more, to try it"
                    " again delete %s",
                    what,
                    family,
                    self._path,
                )
