"""Whether pages lack for those that wait, the rule by which schedulers let running ones go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gatewayd_hooks.scheduling import QueueView


class Shortage:
    """Remembers that those who wait found no pages, until there are more or somebody else waits.

    What the engine grants to one that waits and finds no pages is lost to others. A scheduler that
    lets some who wait go before those that run would grant it again in every step, and nobody would
    ever give pages back. While this lasts, grant to those that run first, and to those that wait
    what is left: so there are never two steps in a row that come to nothing. New in 1.9.
    """

    __slots__ = ("_free", "_lacked")

    def __init__(self) -> None:
        self._free = 0  # when the last step was planned
        self._lacked = -1  # so many were too few

    def came(self) -> None:
        """Another sequence waits, which may need fewer pages: let it try."""
        self._lacked = -1

    def lasts(self, view: QueueView) -> bool:
        """Whether those that run go first in this step; ask once for each, as it is planned."""
        if view.unplaced:
            self._lacked = max(self._free, self._lacked)
        self._free = view.free_pages
        if self._free > self._lacked:
            self._lacked = -1
        return self._lacked >= 0
