"""Detects that waiting sequences lack pages, so that a scheduler prefers running ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gatewayd_hooks.scheduling import QueueView


class Shortage:
    """Remembers that waiting sequences found no pages, until more are free or another one waits.

    Tokens granted to a waiting sequence for which no pages are found are lost to others. A
    scheduler that lets waiting sequences go before running ones would grant them again in every
    step, and no pages would ever be released. While this lasts, grant to running sequences first,
    and the rest to waiting ones: then two consecutive steps are never wasted. New in 1.9.
    """

    __slots__ = ("_free", "_lacked")

    def __init__(self) -> None:
        self._free = 0  # pages when the last step was planned
        self._lacked = -1  # number of pages that was too small

    def came(self) -> None:
        """Record that another sequence waits, which may need fewer pages: let it try."""
        self._lacked = -1

    def lasts(self, view: QueueView) -> bool:
        """Whether running sequences go first in this step.

        Call once per step, when it is planned.
        """
        if view.unplaced:
            # `_free` is the number with which the plan that found no pages was made.
            self._lacked = max(self._free, self._lacked)
        self._free = view.free_pages
        # More pages are free than when it failed: worth another try.
        if self._free > self._lacked:
            self._lacked = -1
        return self._lacked >= 0
