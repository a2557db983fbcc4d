"""Waiting sequences that had better wait a step, so that schedulers pass over them.

Another one computes the beginning they share, a KV tier brings their pages to memory, or what they
must follow is compiled. Whether it still does is asked before each plan, of those alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.cache.offload import KvOffload
from gatewayd_engine.cache.prefix_cache import PrefixCache
from gatewayd_engine.process.plugin_faults import RequestFault
from gatewayd_engine.process.time_causes import Cause
from gatewayd_engine.scheduling.shared_prefills import SharedPrefills
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.sequence import Sequence
from gatewayd_engine.strategies.active import Strategies

MAX_STEPS = 64
"""Steps that a sequence waits for others: a prompt of 128k tokens at 2,048 a step."""
_MOST_ALIKE = 256
"""Waiting sequences that are looked at because another with their first page was held."""
_MOST_ASKED = 32
"""Sequences held for a KV tier that are looked at in a step: each costs a search in what it has."""


class _ForLeader(NamedTuple):
    """What a sequence waits for that is held for another.

    The other's slot names it, without its id: a sequence that has just come to that slot has no
    row, so it is not among those who computed.
    """

    sequence: int
    """The id of the one that waits."""
    leader: int
    """Slot of the one that computes."""
    until: int
    """Tokens that the leader has computed when nothing is left to wait for."""


class _ForQuota(NamedTuple):
    """What a sequence waits for whose tenant may have no more pages now."""

    sequence: int
    """The id of the one that waits."""
    needed: int
    """Pages that it would take."""


class Deferral:
    """Who is held, for whom or what, and until when.

    Args:
        queue: of the engine; its view says who is held.
        prefixes: knows what is cached.
        outside: knows what KV tiers bring.
        strategies: the tiers, if there are any.
        page_size: tokens per page.
        room: pages that a tenant, by its number, may have for another sequence.

    Attributes:
        computing: slots that computed in the last step. Only they are waited for: whoever waits
            for one that the scheduler holds back waits in vain.
    """

    def __init__(
        self,
        queue: Queue,
        prefixes: PrefixCache,
        outside: KvOffload,
        strategies: Strategies,
        page_size: int,
        room: Callable[[int], int],
    ) -> None:
        self._queue = queue
        self._room = room
        self._prefixes = prefixes
        self._outside = outside
        self._strategies = strategies
        self._page_size = page_size
        self._came: dict[int, None] = {}
        self._for_leader: dict[int, _ForLeader] = {}
        self._for_tier: dict[int, int] = {}  # ids by slot, first those asked longest ago
        self._for_grammar: dict[int, int] = {}  # the same
        self._for_quota: dict[int, _ForQuota] = {}
        self._rooms: dict[int, int] = {}  # of tenants, when they were looked at last
        self._reviews = 0
        self.computing: NDArray[np.int32] = np.zeros(0, np.int32)

    @property
    def any_for_others(self) -> bool:
        """Whether anybody is held for what no step brings: one may have nothing to compute."""
        return bool(self._for_tier or self._for_grammar)

    @property
    def by_cause(self) -> list[tuple[Cause, Collection[int]]]:
        """Slots of those that are held, for what."""
        held: tuple[tuple[Cause, Collection[int]], ...] = (
            (Cause.LEADER, self._for_leader),
            (Cause.TIER, self._for_tier),
            (Cause.GRAMMAR, self._for_grammar),
            (Cause.KV_QUOTA, self._for_quota),
        )
        return [(cause, slots) for cause, slots in held if slots]

    def came(self, sequence: Sequence) -> None:
        """A sequence waits from now on: it is looked at before the next plan."""
        self._came[sequence.slot] = None

    def left(self, slot: int) -> None:
        """A waiting sequence is not to be scheduled: nothing is done for it meanwhile."""
        for line in (self._came, self._for_leader, self._for_tier, self._for_grammar):
            line.pop(slot, None)
        self._queue.view.held = self._queue.view.held - {slot}

    # Before a plan

    def review(self) -> None:
        """Let those go who need not wait any more, and look at who has come.

        Raises:
            RequestFault: what a sequence must follow is refused.
        """
        if not (
            self._came or self._for_leader or self._for_tier or self._for_grammar or self._for_quota
        ):
            return
        if self._for_grammar:
            self._review_for_grammar()
        queue = self._queue
        computing = self.computing[queue.row[self.computing] >= 0]
        if self._for_leader:
            self._review_for_leader(computing)
        if self._for_tier:
            self._review_for_tier()
        if self._for_quota:
            self._review_for_quota()
        if self._came:
            underway = SharedPrefills(queue, self._prefixes, self._page_size, computing)
            for slot in list(self._came):
                if slot in queue.waiting and not (
                    slot in self._for_tier or slot in self._for_grammar
                ):
                    self._hold_for_leader(slot, underway)
                del self._came[slot]
        queue.view.held = frozenset(
            [*self._for_leader, *self._for_tier, *self._for_grammar, *self._for_quota]
        )

    def _review_for_leader(self, computing: NDArray[np.int32]) -> None:
        queue = self._queue
        slots = np.fromiter(self._for_leader, np.int32, len(self._for_leader))
        ids, leaders, until = np.array(list(self._for_leader.values()), np.int64).T
        is_computing = np.zeros(len(queue.row), np.bool_)
        is_computing[computing] = True
        stays = (
            is_computing[leaders]
            & (queue.view.num_computed[leaders] - queue.in_flight[leaders] < until)
            & (queue.waits[slots] < MAX_STEPS)
            & self._still_wait(slots, ids)
        )
        queue.waits[slots[stays]] += 1
        for slot in slots[~stays].tolist():
            del self._for_leader[slot]

    def _review_for_tier(self) -> None:
        slots = np.fromiter(self._for_tier, np.int32, len(self._for_tier))
        ids = np.fromiter(self._for_tier.values(), np.int64, len(self._for_tier))
        for slot in slots[~self._still_wait(slots, ids)].tolist():
            del self._for_tier[slot]
        for slot in list(islice(self._for_tier, _MOST_ASKED)):
            del self._for_tier[slot]
            self.hold_for_tier(self._queue[slot])

    def _review_for_grammar(self) -> None:
        """Let those go whose grammar is compiled; one that is refused fails its request."""
        self._strategies.guides.review()
        slots = np.fromiter(self._for_grammar, np.int32, len(self._for_grammar))
        ids = np.fromiter(self._for_grammar.values(), np.int64, len(self._for_grammar))
        for slot in slots[~self._still_wait(slots, ids)].tolist():
            del self._for_grammar[slot]
        for slot in list(self._for_grammar):
            sequence = self._queue[slot]
            if sequence.grammar is None or sequence.grammar.is_settled:
                del self._for_grammar[slot]
                if sequence.grammar is not None and sequence.grammar.refusal is not None:
                    raise RequestFault(slot, *sequence.grammar.refusal)
                self._came[slot] = None

    def _review_for_quota(self) -> None:
        """Let those go who fit by now; all of them now and then, for what they need may shrink."""
        queue = self._queue
        self._reviews += 1
        is_due = self._reviews % MAX_STEPS == 0
        slots = np.fromiter(self._for_quota, np.int32, len(self._for_quota))
        ids, needed = np.array(list(self._for_quota.values()), np.int64).T
        tenants = queue.view.tenant[slots]
        stays = self._still_wait(slots, ids)
        for tenant in np.unique(tenants[stays]).tolist():
            room, before = self._room(tenant), self._rooms.get(tenant, 0)
            self._rooms[tenant] = room
            if is_due:
                stays &= tenants != tenant
            elif room > before:
                stays &= (tenants != tenant) | (needed > room)
        for slot in slots[~stays].tolist():
            del self._for_quota[slot]
        if not self._for_quota:
            self._rooms.clear()

    def _still_wait(self, slots: NDArray[np.int32], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which sequences wait in these slots yet; each may be another's by now."""
        is_theirs: NDArray[np.bool_] = self._queue.ids[slots] == ids
        return is_theirs & (self._queue.row[slots] < 0)

    # While a plan is carried out

    def hold(self, slot: int, underway: SharedPrefills) -> bool:
        """Hold a waiting sequence that a plan grants, if it had better wait this step.

        Args:
            slot: the sequence.
            underway: what this step computes.

        Returns:
            Whether it is held.
        """
        return self._hold_for_leader(slot, underway) or self.hold_for_tier(self._queue[slot])

    def hold_alike(self, slots: list[int], underway: SharedPrefills) -> None:
        """Some were held: hold those who wait behind them and begin alike.

        Otherwise every step would find out about as many of a crowd as a budget is granted to.
        """
        for beginning in set(self._queue.beginning[slots].tolist()):
            alike = self._queue.waiting_alike(beginning).tolist()
            unheld = (slot for slot in alike if slot not in self._for_leader)
            for slot in islice(unheld, _MOST_ALIKE):
                self._hold_for_leader(slot, underway)

    def _hold_for_leader(self, slot: int, underway: SharedPrefills) -> bool:
        """Hold a waiting sequence if another one computes more of its beginning."""
        queue = self._queue
        if queue.waits[slot] >= MAX_STEPS:
            return False
        ahead = underway.ahead_of(slot)
        if ahead is None:
            return False
        queue.waits[slot] += 1
        self._for_leader[slot] = _ForLeader(int(queue.ids[slot]), *ahead)
        return True

    def hold_for_quota(self, slot: int, needed: int) -> None:
        """Hold a waiting sequence until its tenant may have so many pages."""
        self._for_quota[slot] = _ForQuota(int(self._queue.ids[slot]), needed)
        tenant = int(self._queue.view.tenant[slot])
        # Its room is less now than it may have been at the last review.
        self._rooms[tenant] = min(needed - 1, self._rooms.get(tenant, needed))

    def hold_for_grammar(self, sequence: Sequence) -> None:
        """Hold a waiting sequence whose grammar is on its way, or refused."""
        grammar = sequence.grammar
        if grammar is not None and (not grammar.is_settled or grammar.refusal is not None):
            self._for_grammar[sequence.slot] = sequence.id

    def hold_for_tier(self, sequence: Sequence) -> bool:
        """Hold a waiting sequence if a KV tier brings more of its pages to memory."""
        if not self._strategies.tiers or sequence.inherited:
            return False
        num_tokens = int(self._queue.view.num_tokens[sequence.slot])
        match = self._prefixes.match(sequence, num_tokens)
        if not self._outside.fetch(sequence, match, num_tokens):
            return False
        self._for_tier[sequence.slot] = sequence.id
        return True
