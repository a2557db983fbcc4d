"""Least recently used eviction, in constant time."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from gatewayd_hooks.helpers.handover import HandoverState

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources

_FORM = "lru/1"


class Lru:
    """Cached pages in the order of their release."""

    def __init__(self) -> None:
        # Not a plain dict: repeatedly popping its first key scans the gaps of deleted entries.
        self._pages: OrderedDict[int, None] = OrderedDict()

    def open(self, resources: EngineResources) -> None:
        """Do nothing: the number of pages does not matter."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def export_state(self) -> HandoverState:
        """Return the order."""
        return HandoverState(_FORM, tuple(self._pages))

    def import_state(self, state: HandoverState) -> bool:
        """Take over the order of another."""
        if state.form != _FORM:
            return False
        self._pages = OrderedDict.fromkeys(state.content)
        return True

    def release(self, page: int) -> None:
        """Append the page to the order."""
        self._pages[page] = None

    def reuse(self, page: int) -> None:
        """Remove the page from the order."""
        del self._pages[page]

    def victim(self) -> int:
        """Evict the first page of the order."""
        if not self._pages:
            raise LookupError("no page may be evicted")
        return self._pages.popitem(last=False)[0]

    def drop(self, page: int) -> None:
        """Evict a page that the caller chose."""
        del self._pages[page]

    def __len__(self) -> int:
        return len(self._pages)
