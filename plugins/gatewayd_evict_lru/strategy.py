"""Least recently used, in constant time."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from gatewayd_hooks.helpers.handover import HandoverState

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources

_FORM = "lru/1"


class Lru:
    """Cached pages in the order in which their last holder left them."""

    def __init__(self) -> None:
        # Not a plain dict: taking its first key again and again walks over the holes that
        # deleted ones leave.
        self._pages: OrderedDict[int, None] = OrderedDict()

    def open(self, resources: EngineResources) -> None:
        """The number of pages does not matter here."""

    def close(self) -> None:
        """Nothing to give back."""

    def export_state(self) -> HandoverState:
        """Give the order away."""
        return HandoverState(_FORM, tuple(self._pages))

    def import_state(self, state: HandoverState) -> bool:
        """Go on with the order of another."""
        if state.form != _FORM:
            return False
        self._pages = OrderedDict.fromkeys(state.content)
        return True

    def release(self, page: int) -> None:
        """The page goes to the end of the order."""
        self._pages[page] = None

    def reuse(self, page: int) -> None:
        """The page leaves the order."""
        del self._pages[page]

    def victim(self) -> int:
        """Give up the first page of the order."""
        if not self._pages:
            raise LookupError("no page may be evicted")
        return self._pages.popitem(last=False)[0]

    def drop(self, page: int) -> None:
        """Give up a page of somebody else's choice."""
        del self._pages[page]

    def __len__(self) -> int:
        return len(self._pages)
