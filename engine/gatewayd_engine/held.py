"""Waiting sequences that had better wait a step, so that schedulers pass over them.

Another one computes the beginning they share, or a KV tier brings their pages to memory. Whether it
still does is asked before each plan, of those alone.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.outside import Outside
from gatewayd_engine.prefixes import Prefixes
from gatewayd_engine.queue import Queue
from gatewayd_engine.sequence import Sequence
from gatewayd_engine.strategies import Strategies
from gatewayd_engine.underway import Underway

MAX_STEPS = 64
"""Steps that a sequence waits for others: a prompt of 128k tokens at 2,048 a step."""
_MOST_ALIKE = 256
"""Waiting sequences that are looked at because another with their first page was held."""
_MOST_COMING = 32
"""Sequences held for a KV tier: each costs a look at what it has in every step."""


class _Behind(NamedTuple):
    """Whom a sequence waits for."""

    sequence: int
    """The id of the one that waits."""
    leader: int
    """Slot of the one that computes."""
    until: int
    """Tokens that the leader has computed when nothing is left to wait for."""


class Held:
    """Who is held, and until when.

    Args:
        queue: of the engine; its view says who is held.
        prefixes: knows what is cached.
        outside: knows what KV tiers bring.
        strategies: the tiers, if there are any.
        page_size: tokens per page.

    Attributes:
        computing: slots that computed in the last step. Only they are waited for: whoever waits
            for one that the scheduler holds back waits in vain.
    """

    def __init__(
        self,
        queue: Queue,
        prefixes: Prefixes,
        outside: Outside,
        strategies: Strategies,
        page_size: int,
    ) -> None:
        self._queue = queue
        self._prefixes = prefixes
        self._outside = outside
        self._strategies = strategies
        self._page_size = page_size
        self._came: dict[int, None] = {}
        self._behind: dict[int, _Behind] = {}
        self._coming: dict[int, int] = {}  # ids by slot
        self.computing: NDArray[np.int32] = np.zeros(0, np.int32)

    def came(self, sequence: Sequence) -> None:
        """A sequence waits from now on: it is looked at before the next plan."""
        self._came[sequence.slot] = None

    def review(self) -> None:
        """Before a plan: let those go who need not wait any more, and look at who has come."""
        self._outside.begin()
        if not (self._came or self._behind or self._coming):
            return
        queue = self._queue
        computing = self.computing[queue.row[self.computing] >= 0]
        if self._behind:
            self._review_behind(computing)
        for slot, sequence_id in list(self._coming.items()):
            if not (self._still_waits(slot, sequence_id) and self.is_coming(queue[slot])):
                del self._coming[slot]
        if self._came:
            underway = Underway(queue, self._prefixes, self._page_size, computing)
            for slot in list(self._came):
                if slot in queue.waiting and slot not in self._coming:
                    self.look(slot, underway)
                del self._came[slot]
        queue.view.held = frozenset([*self._behind, *self._coming])

    def _review_behind(self, computing: NDArray[np.int32]) -> None:
        queue = self._queue
        slots = np.fromiter(self._behind, np.int32, len(self._behind))
        ids, leaders, until = np.array(list(self._behind.values()), np.int64).T
        is_computing = np.zeros(len(queue.row), np.bool_)
        is_computing[computing] = True
        stays = (
            is_computing[leaders]
            & (queue.view.num_computed[leaders] < until)
            & (queue.waits[slots] < MAX_STEPS)
            & (queue.ids[slots] == ids)  # it may be another's slot by now
            & (queue.row[slots] < 0)
        )
        queue.waits[slots[stays]] += 1
        for slot in slots[~stays].tolist():
            del self._behind[slot]

    def _still_waits(self, slot: int, sequence_id: int) -> bool:
        return slot in self._queue.waiting and self._queue.ids[slot] == sequence_id

    def defers(self, slot: int, underway: Underway) -> bool:
        """Whether a waiting sequence that a plan grants had better wait this step.

        Args:
            slot: the sequence.
            underway: what this step computes.
        """
        if self.look(slot, underway):
            return True
        sequence = self._queue[slot]
        if not self.is_coming(sequence):
            return False
        self.hold_for_tier(sequence)
        return True

    def look(self, slot: int, underway: Underway) -> bool:
        """Hold a waiting sequence if another one computes more of its beginning."""
        queue = self._queue
        if queue.waits[slot] >= MAX_STEPS:
            return False
        ahead = underway.ahead_of(slot)
        if ahead is None:
            return False
        queue.waits[slot] += 1
        self._behind[slot] = _Behind(int(queue.ids[slot]), *ahead)
        return True

    def look_around(self, slots: list[int], underway: Underway) -> None:
        """Some were held: look at those who wait behind them and begin alike.

        Otherwise every step would find out about as many of a crowd as a budget is granted to.
        """
        for beginning in set(self._queue.beginning[slots].tolist()):
            alike = self._queue.waiting_alike(beginning).tolist()
            unheld = (slot for slot in alike if slot not in self._behind)
            for slot in islice(unheld, _MOST_ALIKE):
                self.look(slot, underway)

    def is_coming(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence had better wait for pages of a KV tier."""
        if not self._strategies.tiers or sequence.inherited:
            return False
        num_tokens = int(self._queue.view.num_tokens[sequence.slot])
        match = self._prefixes.match(sequence, num_tokens)
        return self._outside.is_coming(sequence, match, num_tokens)

    def hold_for_tier(self, sequence: Sequence) -> None:
        """Hold a sequence for pages of a KV tier, unless too many are."""
        if len(self._coming) < _MOST_COMING:
            self._coming[sequence.slot] = sequence.id
