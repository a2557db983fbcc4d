"""Deferral of waiting sequences for which waiting a step is cheaper than being scheduled.

Another sequence computes the prefix they share, a KV tier is loading their pages, their grammar is
being compiled, or their tenant is at its quota. Only deferred sequences are reviewed before a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
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
"""Steps that a sequence is deferred at most: a prompt of 128k tokens at 2,048 a step."""
_MOST_ALIKE = 256
"""Waiting sequences that are checked because another with the same first page was deferred."""
_MOST_ASKED = 32
"""Sequences deferred for a KV tier that are reviewed per step: each costs a tier lookup."""


class _ForLeader(NamedTuple):
    """Deferral for another sequence that computes a shared prefix.

    The leader is identified by slot, without its id: a sequence that has just been assigned that
    slot has no row, so it is not among those that computed.
    """

    sequence: int
    """Id of the deferred sequence."""
    leader: int
    """Slot of the sequence that computes the prefix."""
    until: int
    """Tokens the leader has computed when the shared prefix is complete."""


class _ForQuota(NamedTuple):
    """Deferral because the tenant's page quota is exhausted."""

    sequence: int
    """Id of the deferred sequence."""
    needed: int
    """Pages that it needs."""


@dataclass(slots=True, eq=False, repr=False)
class Deferral:
    """Deferred waiting sequences: which, for which reason, and until when.

    Args:
        queue: the engine's sequence table; its view shows deferred sequences as ``held``.
        prefixes: the prefix cache.
        offload: KV tiers and their pending loads.
        strategies: the KV tiers, if there are any.
        page_size: tokens per page.
        headroom: returns the pages available to a tenant, by its number, for another sequence.

    Attributes:
        computing: slots that computed in the last step. Sequences are only deferred for these:
            waiting for one that the scheduler holds back would be in vain.
    """

    _queue: Queue
    _prefixes: PrefixCache
    _offload: KvOffload
    _strategies: Strategies
    _page_size: int
    _headroom: Callable[[int], int]
    _new: dict[int, None] = field(default_factory=dict)
    _for_leader: dict[int, _ForLeader] = field(default_factory=dict)
    # Ids by slot, least recently reviewed first.
    _for_tier: dict[int, int] = field(default_factory=dict)
    _for_grammar: dict[int, int] = field(default_factory=dict)
    _for_quota: dict[int, _ForQuota] = field(default_factory=dict)
    # Headroom of tenants at the last review.
    _last_headroom: dict[int, int] = field(default_factory=dict)
    _reviews: int = 0
    computing: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def waits_for_external(self) -> bool:
        """Whether any sequence is deferred for something that no step computes.

        Then a plan may be empty without being the scheduler's fault.
        """
        return bool(self._for_tier or self._for_grammar)

    @property
    def by_cause(self) -> list[tuple[Cause, Collection[int]]]:
        """Slots of deferred sequences, by cause."""
        deferred: tuple[tuple[Cause, Collection[int]], ...] = (
            (Cause.LEADER, self._for_leader),
            (Cause.TIER, self._for_tier),
            (Cause.GRAMMAR, self._for_grammar),
            (Cause.KV_QUOTA, self._for_quota),
        )
        return [(cause, slots) for cause, slots in deferred if slots]

    def track(self, sequence: Sequence) -> None:
        """Check a newly enqueued sequence before the next plan."""
        self._new[sequence.slot] = None

    def discard(self, slot: int) -> None:
        """Stop deferring a sequence that is not to be scheduled, and drop its pending check."""
        for reason in (
            self._new,
            self._for_leader,
            self._for_tier,
            self._for_grammar,
            self._for_quota,
        ):
            reason.pop(slot, None)
        self._queue.view.held = self._queue.view.held - {slot}

    # Before a plan

    def review(self) -> None:
        """End deferrals whose reason no longer holds, and check newly enqueued sequences.

        Raises:
            RequestFault: the grammar of a sequence was rejected.
        """
        if not (
            self._new or self._for_leader or self._for_tier or self._for_grammar or self._for_quota
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
        if self._new:
            underway = SharedPrefills(queue, self._prefixes, self._page_size, computing)
            # Removed one by one: after a strategy fault the review is repeated with the rest.
            for slot in list(self._new):
                if slot in queue.waiting and not (
                    slot in self._for_tier or slot in self._for_grammar
                ):
                    self._defer_for_leader(slot, underway)
                del self._new[slot]
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
            # Pages of a step in flight are not in the prefix cache yet.
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
        # Those still deferred are added at the end, so that reviews rotate through all of them.
        for slot in list(islice(self._for_tier, _MOST_ASKED)):
            del self._for_tier[slot]
            self.defer_for_tier(self._queue[slot])

    def _review_for_grammar(self) -> None:
        """End deferrals whose grammar is compiled; a rejected grammar fails its request."""
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
                    # The request ends, and the review is repeated without it.
                    raise RequestFault(slot, *sequence.grammar.refusal)
                self._new[slot] = None

    def _review_for_quota(self) -> None:
        """End deferrals that fit the quota now.

        At intervals all are released, because the number of pages they need may have shrunk.
        """
        queue = self._queue
        self._reviews += 1
        is_due = self._reviews % MAX_STEPS == 0
        slots = np.fromiter(self._for_quota, np.int32, len(self._for_quota))
        ids, needed = np.array(list(self._for_quota.values()), np.int64).T
        tenants = queue.view.tenant[slots]
        stays = self._still_wait(slots, ids)
        for tenant in np.unique(tenants[stays]).tolist():
            room, before = self._headroom(tenant), self._last_headroom.get(tenant, 0)
            self._last_headroom[tenant] = room
            if is_due:
                stays &= tenants != tenant
            # What did not fit then fits only if the headroom has grown.
            elif room > before:
                stays &= (tenants != tenant) | (needed > room)
        for slot in slots[~stays].tolist():
            del self._for_quota[slot]
        if not self._for_quota:
            self._last_headroom.clear()

    def _still_wait(self, slots: NDArray[np.int32], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the same sequences still wait in these slots, shape ``[n]``."""
        is_theirs: NDArray[np.bool_] = self._queue.ids[slots] == ids
        return is_theirs & (self._queue.row[slots] < 0)

    # While a plan is carried out

    def defer(self, slot: int, underway: SharedPrefills) -> bool:
        """Defer a waiting sequence that was granted tokens, if waiting a step is cheaper.

        Args:
            slot: of the sequence.
            underway: prompts that this step computes.

        Returns:
            Whether it was deferred.
        """
        return self._defer_for_leader(slot, underway) or self.defer_for_tier(self._queue[slot])

    def defer_alike(self, slots: list[int], underway: SharedPrefills) -> None:
        """Defer waiting sequences that share the first page with some deferred ones.

        Otherwise each step would discover only as many of them as its token budget grants.
        """
        for beginning in set(self._queue.beginning[slots].tolist()):
            alike = self._queue.waiting_with_prefix(beginning).tolist()
            not_deferred = (slot for slot in alike if slot not in self._for_leader)
            for slot in islice(not_deferred, _MOST_ALIKE):
                self._defer_for_leader(slot, underway)

    def _defer_for_leader(self, slot: int, underway: SharedPrefills) -> bool:
        """Defer a waiting sequence if another one computes more of its prefix."""
        queue = self._queue
        if queue.waits[slot] >= MAX_STEPS:
            return False
        leader = underway.find_leader(slot)
        if leader is None:
            return False
        queue.waits[slot] += 1
        self._for_leader[slot] = _ForLeader(int(queue.ids[slot]), *leader)
        return True

    def defer_for_quota(self, slot: int, needed: int) -> None:
        """Defer a waiting sequence until its tenant may have so many pages."""
        self._for_quota[slot] = _ForQuota(int(self._queue.ids[slot]), needed)
        tenant = int(self._queue.view.tenant[slot])
        # The headroom is less now than it may have been at the last review.
        self._last_headroom[tenant] = min(needed - 1, self._last_headroom.get(tenant, needed))

    def defer_for_grammar(self, sequence: Sequence) -> None:
        """Defer a waiting sequence whose grammar is being compiled, or was rejected."""
        grammar = sequence.grammar
        if grammar is not None and (not grammar.is_settled or grammar.refusal is not None):
            self._for_grammar[sequence.slot] = sequence.id

    def defer_for_tier(self, sequence: Sequence) -> bool:
        """Defer a waiting sequence if a KV tier is loading more of its pages."""
        if not self._strategies.tiers or sequence.inherited:
            return False
        num_tokens = int(self._queue.view.num_tokens[sequence.slot])
        match = self._prefixes.match(sequence, num_tokens)
        if not self._offload.fetch(sequence, match, num_tokens):
            return False
        self._for_tier[sequence.slot] = sequence.id
        return True
