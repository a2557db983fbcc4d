"""Division of a step's token budget among running and admitted sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gatewayd_hooks.scheduling import Plan, QueueView

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_sched_fair.token_accounting import TokenAccounting
    from gatewayd_sched_fair.virtual_counters import ActiveTenants, VirtualTokenCounters


@dataclass(slots=True, eq=False, repr=False)
class BudgetDivision:
    """Distributes budgets: decodes, then prompts, in both the least served tenant first.

    Args:
        counters: of the tenants.
        accounting: determines the cost of tokens.
        active_tenants: determines whether other tenants were active recently.
        contention_share: maximum fraction of a step for prompts of tenants without credit, if so.
        contention_pause: consecutive steps in which their decodes pause for prompts of tenants
            with credit.

    Attributes:
        lead: cost by which a tenant may be ahead of one that has prompts left.
    """

    _counters: VirtualTokenCounters
    _accounting: TokenAccounting
    _active_tenants: ActiveTenants
    _contention_share: float
    _contention_pause: int
    _paused: int = 0  # consecutive steps
    lead: float = 0.0

    def divide(
        self,
        view: QueueView,
        slots: NDArray[np.int32],
        needs: NDArray[np.int32],
        num_running: int,
        *,
        running_first: bool,
    ) -> Plan:
        """Distribute the budget of a step.

        Args:
            view: the queue.
            slots: running ones, then waiting ones, shape ``[n]``.
            needs: tokens that each needs, shape ``[n]``.
            num_running: how many of them run.
            running_first: whether waiting ones get only what running ones leave.
        """
        if not len(slots):
            return Plan(slots, needs)
        counters = self._counters
        tenants = view.tenant[slots]
        costs = self._accounting.costs_of(slots, needs, view) / counters.weights[tenants]
        is_prompt = needs > 1
        # A waiting sequence counts as a prompt, even if all but one of its tokens are cached.
        is_prompt[num_running:] = True
        goes_behind = np.zeros(len(slots), bool)
        goes_behind[num_running:] = running_first
        # Within a tenant in this order, so that each starts at the level after the ones before it.
        order = np.lexsort((is_prompt, tenants))
        ahead = np.cumsum(costs[order]) - costs[order]
        first = np.flatnonzero(np.diff(tenants[order], prepend=-1))
        # The cumulative cost restarts with each tenant.
        ahead -= np.repeat(ahead[first], np.diff(np.append(first, len(order))))
        begins = np.empty(len(slots))
        begins[order] = counters.levels[tenants[order]] + ahead
        # Tenants far ahead of one that has prompts left decode after those prompts.
        lowest = tenants[is_prompt & ~goes_behind]
        is_far = np.zeros(len(slots), bool)
        if len(lowest):
            is_far = counters.is_ahead(
                tenants, int(lowest[counters.levels[lowest].argmin()]), self.lead
            )
        # The last key is the primary one: see the class for the order.
        order = np.lexsort((begins, is_prompt, is_far, goes_behind))
        slots, needs, goes_behind = slots[order], needs[order], goes_behind[order]
        if self._active_tenants.has_several(view.now):
            share = 1.0 if is_far.any() else self._contention_share
            needs = self._shortened(view, slots, needs, is_prompt[order], goes_behind, share)
            slots, needs = slots[needs > 0], needs[needs > 0]
        reach = np.cumsum(needs)
        if reach[-1] <= view.token_budget:
            return Plan(slots, needs)
        # The grant that exceeds the budget gets what is left of it.
        last = int(np.searchsorted(reach, view.token_budget))
        tokens = needs[: last + 1].copy()
        tokens[last] -= reach[last] - view.token_budget
        return Plan(slots[: last + 1], tokens)

    def _shortened(
        self,
        view: QueueView,
        slots: NDArray[np.int32],
        needs: NDArray[np.int32],
        is_prompt: NDArray[np.bool_],
        goes_behind: NDArray[np.bool_],
        share: float,
    ) -> NDArray[np.int32]:
        """Limit the tokens of tenants without credit to a fraction of the step."""
        has_credit = self._counters.has_credit(view.tenant[slots])
        goes_first = is_prompt & has_credit & ~goes_behind
        crowd = is_prompt & ~has_credit
        # No tenant with credit has a prompt: those of the others get a part of the step, which
        # keeps it short for the next request of another tenant. See ADR 0029.
        if not goes_first.any():
            self._paused = 0
            limit = max(1, int(view.token_budget * share))
            reach = np.cumsum(np.where(crowd, needs, 0))
            less = np.clip(limit - (reach - needs), 0, needs)
            return np.where(crowd, less, needs)
        # Tenants with credit have the step for themselves, so that it is short.
        shortened: NDArray[np.int32] = np.where(crowd, 0, needs)
        # Decodes also add up. If pages are short they go on, because they release pages in the end.
        has_pages = view.free_pages * view.page_size > int(shortened.sum())
        pauses = has_pages and self._paused < self._contention_pause
        self._paused = self._paused + 1 if pauses else 0
        if pauses:
            shortened[~is_prompt & ~has_credit] = 0
        # A chunk of the next prompt would delay those before it without finishing any sooner.
        first = np.flatnonzero(goes_first)
        room = view.token_budget - int(shortened[~is_prompt].sum())
        shortened[first[1:][np.cumsum(needs[first])[1:] > room]] = 0
        return shortened
