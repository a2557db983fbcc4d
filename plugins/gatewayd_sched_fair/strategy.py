"""Tenants share tokens by weight; whoever was served least for its weight is next."""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gatewayd_hooks.helpers.shortage import Shortage
from gatewayd_hooks.helpers.waiting import WaitingLine
from gatewayd_hooks.preemption import MAX_PREEMPTIONS
from gatewayd_hooks.scheduling import Plan, QueueView
from gatewayd_sched_fair.accounts import Accounts, Crowd
from gatewayd_sched_fair.config import FairConfig
from gatewayd_sched_fair.division import Division
from gatewayd_sched_fair.service import Service

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources

_HORIZON = 64
"""Tokens that a sequence is taken to generate when places are given: one is paid for later."""
_MOST_VICTIMS = 4
"""Sequences that give way in one step."""
_NOBODY = np.zeros(0, np.int32)


class _Wish(NamedTuple):
    """A waiting sequence that is next of its tenant."""

    level: float
    """Its tenant's, with what that has in the batch."""
    tenant: int
    slot: int


class Fair:
    """A virtual token counter for each tenant (VTC), and steps shared by it.

    While two tenants want more than they get, the costs of what they were served, divided by their
    weights, stay within a bound. One that gets all it wants keeps a small credit, so its requests
    go first. When places or pages bind, the newest sequence of whoever is ahead by ``lead`` or more
    gives way to one that waits.
    """

    def __init__(self, config: FairConfig) -> None:
        self._config = config
        self._lead = config.lead
        self._credit = config.credit
        self._accounts = Accounts()
        self._service = Service(config.prompt_cost, config.answer_cost)
        self._lines: dict[int, WaitingLine] = {}
        self._tenants: dict[int, int] = {}  # of those that wait, by slot
        self._wanting = np.zeros(0, np.int64)
        self._has_waiting: NDArray[np.bool_] = np.zeros(0, bool)
        self._crowd = Crowd()
        self._shortage = Shortage()
        self._division = Division(
            self._accounts, self._service, self._crowd, config.crowd_share, config.crowd_pause
        )
        self._view: QueueView | None = None

    def open(self, resources: EngineResources) -> None:
        """Settle how far a tenant may be ahead, and how far behind."""
        longest = resources.max_model_len * self._config.answer_cost
        self._lead = self._config.lead or longest / 16
        self._credit = self._config.credit or longest / 4
        self._division.lead = self._lead

    def close(self) -> None:
        """Nothing to give back."""

    def enqueue(self, slot: int, view: QueueView, *, front: bool) -> None:
        """A sequence waits from now on, among those of its tenant."""
        tenant = int(view.tenant[slot])
        self._shortage.came()
        self._service.begin(slot, view)
        self._accounts.note(tenant, float(view.weight[slot]))
        self._crowd.came(tenant, view.now)
        late = int(view.priority[slot]) * self._config.class_delay
        self._leave(slot)
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = WaitingLine()
        line.enter(slot, float(view.arrival[slot]) + late, front=front)
        self._tenants[slot] = tenant

    def dequeue(self, slot: int) -> None:
        """A waiting sequence was admitted or has gone."""
        if self._view is None or slot not in self._view.running:
            self._service.gone(slot)
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
        waits = np.zeros(len(view.num_tokens), bool)
        waits[list(self._tenants)] = True
        running = view.running
        needs = view.num_tokens[running] - view.num_computed[running]
        tenants = view.tenant[running]
        if len(tenants):
            self._accounts.fit(int(tenants.max()))  # another scheduler admitted them
        self._accounts.charge(*self._service.settle(view, waits))
        in_batch = np.bincount(tenants, minlength=len(self._accounts.levels))
        unplaced = view.tenant[list(view.unplaced)].astype(np.int64)
        wanting = np.union1d(self._wanting, unplaced)
        self._accounts.forgive(wanting, np.flatnonzero(in_batch), self._credit)

        heads = self._heads(view, in_batch)
        victims, freed, behind = self._victims(view, heads)
        stays = ~np.isin(running, victims)
        if behind is not None:
            # Until who waits has its place, whoever is far ahead computes nothing.
            stays &= ~self._accounts.is_ahead(tenants, behind, self._lead)
            heads = [w._replace(level=-np.inf) if w.tenant == behind else w for w in heads]
        slots, needs = running[stays], needs[stays]
        places = view.max_running - len(running) + len(victims)
        new = self._admissions(view, heads, places, view.free_pages + freed)
        new_slots = np.array([slot for slot, _ in new], np.int32)
        new_needs = np.array([need for _, need in new], np.int32)
        # Whoever waits finds pages where others gave way, or behind those that run.
        plan = self._division.divide(
            view,
            np.concatenate([slots, new_slots]),
            np.concatenate([needs, new_needs]),
            len(slots),
            running_first=lacks_pages and behind is None,
        )
        self._service.grant(plan.slots, plan.tokens, view)
        self._note_wanting(view, plan, new_slots, behind)
        return plan._replace(preempt=victims) if len(victims) else plan

    # Who is next

    def _heads(self, view: QueueView, in_batch: NDArray[np.int64]) -> list[_Wish]:
        """The next one of each tenant of whom somebody waits."""
        return [
            _Wish(self._level(tenant, int(in_batch[tenant])), tenant, slot)
            for tenant, line in self._lines.items()
            for slot in islice(line.without(view.held), 1)
        ]

    def _level(self, tenant: int, places: int) -> float:
        ahead = places * _HORIZON * self._config.answer_cost
        return float(self._accounts.levels[tenant] + ahead / self._accounts.weights[tenant])

    def _admissions(
        self, view: QueueView, heads: list[_Wish], places: int, pages: int
    ) -> list[tuple[int, int]]:
        """Waiting sequences for the free places, with their tokens, the least served first."""
        accounts, config = self._accounts, self._config
        chosen: list[tuple[int, int]] = []
        lines = {
            wish.tenant: islice(self._lines[wish.tenant].without(view.held), 1, None)
            for wish in heads
        }
        heap = list(heads)
        heapify(heap)
        tokens = 0
        # The first that seems to find no pages is among them: the engine knows better, and nobody
        # behind it may overtake.
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
            cost = uncached * config.prompt_cost + _HORIZON * config.answer_cost
            heapreplace(heap, _Wish(level + cost / float(accounts.weights[tenant]), tenant, behind))
        return chosen

    # Who gives way

    def _victims(
        self, view: QueueView, heads: list[_Wish]
    ) -> tuple[NDArray[np.int32], int, int | None]:
        """Who gives way to the tenant that was served least, and about how many pages that frees.

        Returns:
            Slots, pages, and that tenant; None if nobody gives way.
        """
        nobody = _NOBODY, 0, None
        running = view.running
        if not heads or not len(running):
            return nobody
        least = min(heads, key=lambda wish: self._accounts.levels[wish.tenant])
        lacks_place = len(running) >= view.max_running
        if not lacks_place and least.slot not in view.unplaced:
            return nobody
        may = self._accounts.is_ahead(view.tenant[running], least.tenant, self._lead)
        may &= view.preemptions[running] < MAX_PREEMPTIONS
        may &= view.tenant[running] != least.tenant
        candidates = running[may]
        if not len(candidates):
            return nobody
        # The tenant that is furthest ahead, of it the newest: least is lost.
        order = np.lexsort(
            (-view.arrival[candidates], -self._accounts.levels[view.tenant[candidates]])
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

    # Who wants more

    def _note_wanting(
        self, view: QueueView, plan: Plan, new: NDArray[np.int32], behind: int | None
    ) -> None:
        """Which tenants would have taken more."""
        wanting = np.zeros(len(self._accounts.levels), bool)
        served = np.isin(view.running, plan.slots)
        wanting[view.tenant[view.running[~served]]] = True
        granted = view.num_computed[plan.slots] + plan.tokens
        is_cut = granted < view.num_tokens[plan.slots]
        is_cut[np.isin(plan.slots, new)] = False
        wanting[view.tenant[plan.slots[is_cut]]] = True
        content = set(plan.slots.tolist()) | set(view.held)
        for tenant, line in self._lines.items():
            if any(slot not in content for slot in line):
                wanting[tenant] = True
        if behind is not None:
            wanting[behind] = True
        self._wanting = np.flatnonzero(wanting)
