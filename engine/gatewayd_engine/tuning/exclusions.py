"""Which candidates are left out because processes ended while they tried them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from gatewayd_engine.tuning.crash_guard import Attempt
from gatewayd_engine.tuning.table_contents import TableContents

_log = logging.getLogger(__name__)


class Exclusions:
    """The exclusions of one machine.

    One death proves nothing: a process may have been killed for memory, or by an operator. So the
    attempt is only suspected then, and its family is excluded if it is the next process's last one
    as well.

    Args:
        path: of the file that keeps them, for warnings.

    Attributes:
        families: that are left out.
        suspected: attempts during which a process ended, and which none has survived since.
    """

    def __init__(self, path: Path | None) -> None:
        self.families: set[str] = set()
        self.suspected: set[str] = set()
        self._path = path

    def take_over(self, contents: TableContents) -> None:
        """Take over what a file says.

        What is suspected is replaced: other processes may have survived it.
        """
        self.families |= set(contents.excluded)
        self.suspected = set(contents.suspected)

    def count(self, died: Iterable[Attempt]) -> None:
        """Take into account what processes tried when they ended."""
        for family, what in sorted(died):
            if what not in self.suspected:
                self.suspected.add(what)
                _log.warning("a process ended while it tried %s; it is tried once more", what)
            elif family not in self.families:
                self.families.add(family)
                _log.warning(
                    "two processes ended while they tried %s; %s is not used any more, to try it"
                    " again delete %s",
                    what,
                    family,
                    self._path,
                )
