"""Who computes how much of a step: its budget, shared by those that run and those that come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gatewayd_hooks.scheduling import Plan, QueueView

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_sched_fair.accounts import Accounts, Crowd
    from gatewayd_sched_fair.service import Service


class Division:
    """Hands out budgets: decodes, then prompts, in both the least served tenant first.

    Args:
        accounts: of the tenants.
        service: knows what tokens cost.
        crowd: knows whether others were there of late.
        crowd_share: most of a step for prompts of tenants without credit, while there were.
        crowd_pause: steps in a row in which their decodes wait for prompts of those that have.

    Attributes:
        lead: cost by which a tenant may be ahead of one that has prompts left.
    """

    def __init__(
        self,
        accounts: Accounts,
        service: Service,
        crowd: Crowd,
        crowd_share: float,
        crowd_pause: int,
    ) -> None:
        self._accounts = accounts
        self._service = service
        self._crowd = crowd
        self._crowd_share = crowd_share
        self._crowd_pause = crowd_pause
        self._paused = 0  # steps in a row
        self.lead = 0.0

    def divide(
        self,
        view: QueueView,
        slots: NDArray[np.int32],
        needs: NDArray[np.int32],
        num_running: int,
        *,
        running_first: bool,
    ) -> Plan:
        """Hand out the budget of a step.

        Args:
            view: the queue.
            slots: those that run, then those that wait, shape ``[n]``.
            needs: tokens that each wants, shape ``[n]``.
            num_running: how many of them run.
            running_first: whether those that wait have what the others leave.
        """
        if not len(slots):
            return Plan(slots, needs)
        accounts = self._accounts
        tenants = view.tenant[slots]
        costs = self._service.costs_of(slots, needs, view) / accounts.weights[tenants]
        is_prompt = needs > 1
        is_prompt[num_running:] = True
        goes_behind = np.zeros(len(slots), bool)
        goes_behind[num_running:] = running_first
        # Inside a tenant in this order, so each begins at the level that those before it leave.
        order = np.lexsort((is_prompt, tenants))
        ahead = np.cumsum(costs[order]) - costs[order]
        first = np.flatnonzero(np.diff(tenants[order], prepend=-1))
        ahead -= np.repeat(ahead[first], np.diff(np.append(first, len(order))))
        begins = np.empty(len(slots))
        begins[order] = accounts.levels[tenants[order]] + ahead
        # Whoever is far ahead of one that has prompts left decodes behind them.
        lowest = tenants[is_prompt & ~goes_behind]
        is_far = np.zeros(len(slots), bool)
        if len(lowest):
            is_far = accounts.is_ahead(
                tenants, int(lowest[accounts.levels[lowest].argmin()]), self.lead
            )
        order = np.lexsort((begins, is_prompt, is_far, goes_behind))
        slots, needs, goes_behind = slots[order], needs[order], goes_behind[order]
        if self._crowd.is_there(view.now):
            share = 1.0 if is_far.any() else self._crowd_share
            needs = self._shortened(view, slots, needs, is_prompt[order], goes_behind, share)
            slots, needs = slots[needs > 0], needs[needs > 0]
        reach = np.cumsum(needs)
        if reach[-1] <= view.token_budget:
            return Plan(slots, needs)
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
        """Tokens of each, with a share of the step for tenants without credit."""
        has_credit = self._accounts.has_credit(view.tenant[slots])
        goes_first = is_prompt & has_credit & ~goes_behind
        crowd = is_prompt & ~has_credit
        if not goes_first.any():
            self._paused = 0
            limit = max(1, int(view.token_budget * share))
            reach = np.cumsum(np.where(crowd, needs, 0))
            less = np.clip(limit - (reach - needs), 0, needs)
            return np.where(crowd, less, needs)
        # Whoever was served less has the step to itself: it is a short one.
        shortened: NDArray[np.int32] = np.where(crowd, 0, needs)
        # Decodes are many tokens, too. Where pages are short they go on: they give pages back.
        has_pages = view.free_pages * view.page_size > int(shortened.sum())
        pauses = has_pages and self._paused < self._crowd_pause
        self._paused = self._paused + 1 if pauses else 0
        if pauses:
            shortened[~is_prompt & ~has_credit] = 0
        # A part of the next prompt would make those before it wait, and itself be no sooner.
        first = np.flatnonzero(goes_first)
        room = view.token_budget - int(shortened[~is_prompt].sum())
        shortened[first[1:][np.cumsum(needs[first])[1:] > room]] = 0
        return shortened
