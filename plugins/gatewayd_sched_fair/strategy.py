"""Fair scheduler: the tenant with the least service for its weight is next."""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gatewayd_hooks.helpers.shortage import Shortage
from gatewayd_hooks.helpers.waiting import WaitingLine
from gatewayd_hooks.preemption import MAX_PREEMPTIONS
from gatewayd_hooks.scheduling import Plan, QueueView
from gatewayd_sched_fair.config import FairConfig
from gatewayd_sched_fair.division import BudgetDivision
from gatewayd_sched_fair.token_accounting import TokenAccounting
from gatewayd_sched_fair.virtual_counters import ActiveTenants, VirtualTokenCounters

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources

_HORIZON = 64
"""Tokens that a sequence is assumed to generate on admission, as one is charged later."""
_MOST_VICTIMS = 4
"""Maximum of preemptions in one step."""
_NO_SLOTS = np.zeros(0, np.int32)


class _Candidate(NamedTuple):
    """First waiting sequence of a tenant."""

    level: float
    """Level of its tenant, including its sequences in the batch."""
    tenant: int
    slot: int


class Fair:
    """Virtual token counter (VTC) for each tenant, and steps divided by it.

    While two tenants want more than they get, the costs of their service, divided by their weights,
    stay within a bound. A tenant that gets all it wants retains a small credit, so its requests go
    first. When batch rows or pages are short, the newest sequence of a tenant that is ahead by
    ``lead`` or more is preempted for one that waits.
    """

    def __init__(self, config: FairConfig) -> None:
        self._config = config
        self._lead = config.lead
        self._credit = config.credit
        self._counters = VirtualTokenCounters()
        self._accounting = TokenAccounting(config.prompt_cost, config.answer_cost)
        self._lines: dict[int, WaitingLine] = {}
        self._tenants: dict[int, int] = {}  # of waiting sequences, by slot
        self._wanting = np.zeros(0, np.int64)
        self._has_waiting: NDArray[np.bool_] = np.zeros(0, bool)
        self._active_tenants = ActiveTenants()
        self._shortage = Shortage()
        self._division = BudgetDivision(
            self._counters,
            self._accounting,
            self._active_tenants,
            config.crowd_share,
            config.crowd_pause,
        )
        self._view: QueueView | None = None

    def open(self, resources: EngineResources) -> None:
        """Determine the lead and the credit."""
        longest = resources.max_model_len * self._config.answer_cost
        self._lead = self._config.lead or longest / 16
        self._credit = self._config.credit or longest / 4
        self._division.lead = self._lead

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def enqueue(self, slot: int, view: QueueView, *, front: bool) -> None:
        """Add a waiting sequence to the queue of its tenant."""
        tenant = int(view.tenant[slot])
        self._shortage.came()
        self._accounting.add_waiting(slot, view)
        self._counters.set_weight(tenant, float(view.weight[slot]))
        self._active_tenants.record_request(tenant, view.now)
        late = int(view.priority[slot]) * self._config.class_delay
        self._leave(slot)
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = WaitingLine()
        line.enter(slot, float(view.arrival[slot]) + late, front=front)
        self._tenants[slot] = tenant

    def dequeue(self, slot: int) -> None:
        """Remove a waiting sequence that was admitted or has left."""
        # The grant of an admitted sequence stays, to be charged in the next step.
        if self._view is None or slot not in self._view.running:
            self._accounting.remove_waiting(slot)
        self._leave(slot)

    def _leave(self, slot: int) -> None:
        tenant = self._tenants.pop(slot, None)
        if tenant is not None:
            line = self._lines[tenant]
            line.leave(slot)
            if not len(line):
                del self._lines[tenant]

    def plan(self, view: QueueView) -> Plan:
        """Choose the next step."""
        self._view = view
        lacks_pages = self._shortage.lasts(view)
        # Charge what was computed since the last step, before levels are compared.
        waits = np.zeros(len(view.num_tokens), bool)
        waits[list(self._tenants)] = True
        running = view.running
        needs = view.num_tokens[running] - view.num_computed[running]
        tenants = view.tenant[running]
        if len(tenants):
            self._counters.fit(int(tenants.max()))  # another scheduler admitted them
        self._counters.charge(*self._accounting.settle(view, waits))
        in_batch = np.bincount(tenants, minlength=len(self._counters.levels))
        # A tenant whose granted sequences found no pages wanted more than it got, too.
        unplaced = view.tenant[list(view.unplaced)].astype(np.int64)
        wanting = np.union1d(self._wanting, unplaced)
        self._counters.limit_credit(wanting, np.flatnonzero(in_batch), self._credit)

        heads = self._heads(view, in_batch)
        victims, freed, behind = self._victims(view, heads)
        stays = ~np.isin(running, victims)
        if behind is not None:
            # Until the waiting sequence is admitted, tenants far ahead compute nothing.
            stays &= ~self._counters.is_ahead(tenants, behind, self._lead)
            # The tenant for which others are preempted comes first, whatever it has in the batch.
            heads = [w._replace(level=-np.inf) if w.tenant == behind else w for w in heads]
        slots, needs = running[stays], needs[stays]
        places = view.max_running - len(running) + len(victims)
        new = self._admissions(view, heads, places, view.free_pages + freed)
        new_slots = np.array([slot for slot, _ in new], np.int32)
        new_needs = np.array([need for _, need in new], np.int32)
        # Waiting sequences get the pages of preempted ones, or come after running ones.
        plan = self._division.divide(
            view,
            np.concatenate([slots, new_slots]),
            np.concatenate([needs, new_needs]),
            len(slots),
            running_first=lacks_pages and behind is None,
        )
        self._accounting.grant(plan.slots, plan.tokens, view)
        self._update_wanting(view, plan, new_slots, behind)
        return plan._replace(preempt=victims) if len(victims) else plan

    # Admission

    def _heads(self, view: QueueView, in_batch: NDArray[np.int64]) -> list[_Candidate]:
        """Return the first candidate of each tenant with waiting sequences."""
        return [
            _Candidate(self._level(tenant, int(in_batch[tenant])), tenant, slot)
            for tenant, line in self._lines.items()
            for slot in islice(line.without(view.held), 1)
        ]

    def _level(self, tenant: int, places: int) -> float:
        ahead = places * _HORIZON * self._config.answer_cost
        return float(self._counters.levels[tenant] + ahead / self._counters.weights[tenant])

    def _admissions(
        self, view: QueueView, heads: list[_Candidate], places: int, pages: int
    ) -> list[tuple[int, int]]:
        """Return waiting sequences to admit, with their tokens, the least served tenant first."""
        counters, config = self._counters, self._config
        chosen: list[tuple[int, int]] = []
        lines = {
            wish.tenant: islice(self._lines[wish.tenant].without(view.held), 1, None)
            for wish in heads
        }
        heap = list(heads)
        heapify(heap)
        tokens = 0
        # The first without enough pages is included: the engine decides, and no later one may
        # overtake it.
        while heap and places > 0 and pages >= 0 and tokens < view.token_budget:
            level, tenant, slot = heap[0]
            uncached = view.uncached(slot)
            chosen.append((slot, uncached))
            tokens += uncached
            places -= 1
            pages -= -(-uncached // view.page_size)
            behind = next(lines[tenant], None)
            if behind is None:
                heappop(heap)
                continue
            # Its next sequence is as if this one were already charged.
            cost = uncached * config.prompt_cost + _HORIZON * config.answer_cost
            heapreplace(
                heap, _Candidate(level + cost / float(counters.weights[tenant]), tenant, behind)
            )
        return chosen

    # Preemption

    def _victims(
        self, view: QueueView, heads: list[_Candidate]
    ) -> tuple[NDArray[np.int32], int, int | None]:
        """Choose sequences to preempt for the least served tenant, and estimate the freed pages.

        Returns:
            Slots, pages, and that tenant; None if there are none.
        """
        none = _NO_SLOTS, 0, None
        running = view.running
        if not heads or not len(running):
            return none
        least = min(heads, key=lambda wish: self._counters.levels[wish.tenant])
        lacks_place = len(running) >= view.max_running
        if not lacks_place and least.slot not in view.unplaced:
            return none
        may = self._counters.is_ahead(view.tenant[running], least.tenant, self._lead)
        may &= view.preemptions[running] < MAX_PREEMPTIONS
        may &= view.tenant[running] != least.tenant
        candidates = running[may]
        if not len(candidates):
            return none
        # The newest sequence of the tenant that is furthest ahead: the least work is lost.
        order = np.lexsort(
            (-view.arrival[candidates], -self._counters.levels[view.tenant[candidates]])
        )
        wanted = -(-view.uncached(least.slot) // view.page_size) + 1 - view.free_pages
        victims: list[int] = []
        freed = 0
        for slot in candidates[order[:_MOST_VICTIMS]].tolist():
            if victims and freed >= wanted:
                break
            victims.append(slot)
            freed += -(-int(view.num_computed[slot]) // view.page_size)
        return np.array(victims, np.int32), freed, least.tenant

    # Unmet demand

    def _update_wanting(
        self, view: QueueView, plan: Plan, new: NDArray[np.int32], behind: int | None
    ) -> None:
        """Record which tenants would have used more tokens."""
        wanting = np.zeros(len(self._counters.levels), bool)
        served = np.isin(view.running, plan.slots)
        wanting[view.tenant[view.running[~served]]] = True
        granted = view.num_computed[plan.slots] + plan.tokens
        is_cut = granted < view.num_tokens[plan.slots]
        # For new ones the cached prefix, not a cut, may explain a grant below the prompt's length.
        is_cut[np.isin(plan.slots, new)] = False
        wanting[view.tenant[plan.slots[is_cut]]] = True
        content = set(plan.slots.tolist()) | set(view.held)
        for tenant, line in self._lines.items():
            if any(slot not in content for slot in line):
                wanting[tenant] = True
        if behind is not None:
            wanting[behind] = True
        self._wanting = np.flatnonzero(wanting)
