"""Set of waiting sequences as one array, for vectorized steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SlotSet:
    """Unordered set of slots with insertion and removal in constant time."""

    def __init__(self) -> None:
        self._slots = np.zeros(16, np.int32)
        self._places: dict[int, int] = {}

    def __contains__(self, slot: int) -> bool:
        return slot in self._places

    @property
    def all(self) -> NDArray[np.int32]:
        """View of the slots, valid until the next change, shape ``[n]``."""
        return self._slots[: len(self._places)]

    def add(self, slot: int) -> None:
        """Add a slot; no effect if it is contained already."""
        place = len(self._places)
        # A single lookup: the place of a contained slot is below the number of slots.
        if self._places.setdefault(slot, place) < place:
            return
        if place == len(self._slots):
            self._slots = np.concatenate([self._slots, np.zeros_like(self._slots)])
        self._slots[place] = slot

    def remove(self, slot: int) -> None:
        """Remove a slot; no effect if it is not contained."""
        place = self._places.pop(slot, None)
        if place is None:
            return
        last = len(self._places)
        if place < last:
            # The last one moves into the gap, as the order does not matter.
            moved = int(self._slots[last])
            self._slots[place] = moved
            self._places[moved] = place
