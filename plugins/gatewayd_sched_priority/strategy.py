"""Classes share tokens by weight; within a class scheduling is first come, first served."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gatewayd_hooks.helpers.shortage import Shortage
from gatewayd_hooks.helpers.waiting import WaitingLine
from gatewayd_hooks.scheduling import Plan, Priority, QueueView
from gatewayd_sched_priority.config import PriorityConfig
from gatewayd_sched_priority.running import Grants, running_demand
from gatewayd_sched_priority.shares import Shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatewayd_hooks.resources import EngineResources

_HORIZON = 256
"""Tokens that a running sequence is assumed to generate from now on, when rows are assigned.

A row is paid for over the lifetime of its sequence. Without a horizon, a class with a small deficit
would take every row that becomes free until its tokens are computed: far too many.
"""


class _Candidate(NamedTuple):
    """Waiting sequence that may be admitted."""

    number: int
    """Index of its class."""
    slot: int
    uncached: int


class WeightedClasses:
    """Weighted deficit round robin on tokens over realtime, standard and batch.

    When the budget is short, each class gets its share of every step, and a running sequence of a
    class that has used its share may get nothing. When batch rows are short, a free one goes to the
    class that is furthest below its share.
    """

    def __init__(self, config: PriorityConfig) -> None:
        self._shares = Shares((config.realtime, config.standard, config.batch))
        self._lines = [WaitingLine() for _ in Priority]
        self._shortage = Shortage()
        self._backlogged = [False for _ in Priority]
        # Waiting sequences that the last plan granted, with their class and tokens.
        self._granted: dict[int, tuple[int, int]] = {}
        self._view: QueueView | None = None

    def open(self, resources: EngineResources) -> None:
        """Do nothing: the view contains all that is needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def enqueue(self, slot: int, view: QueueView, *, front: bool) -> None:
        """Add a waiting sequence to the queue of its class."""
        self._shortage.came()
        line = self._lines[int(view.priority[slot])]
        line.enter(slot, float(view.arrival[slot]), front=front)

    def dequeue(self, slot: int) -> None:
        """Remove a waiting sequence that was admitted, which is charged, or has left."""
        for line in self._lines:
            line.leave(slot)
        grant = self._granted.pop(slot, None)
        if grant is not None and self._view is not None and slot in self._view.running:
            self._shares.charge(*grant)

    def plan(self, view: QueueView) -> Plan:
        """Choose the next step."""
        # A class whose granted sequences found no pages wanted more than it got.
        for slot, (number, _) in self._granted.items():
            if slot in view.unplaced:
                self._backlogged[number] = True
        lacks_pages = self._shortage.lasts(view)
        self._shares.remove_credit(self._backlogged)
        self._view = view

        running = [running_demand(view, number) for number in range(len(self._lines))]
        candidates = self._candidates(view, running)
        budgets = self._budgets(view.token_budget, running, candidates, lacks_pages=lacks_pages)
        served = [grants.cut(budget) for grants, budget in zip(running, budgets, strict=True)]
        for number, grants in enumerate(served):
            self._shares.charge(number, grants.total)
            budgets[number] -= grants.total
        # Waiting sequences are charged by `dequeue`, if the engine admits them.
        self._granted = {}
        for number, slot, uncached in candidates:
            tokens = min(uncached, budgets[number])
            if tokens:
                self._granted[slot] = number, tokens
                budgets[number] -= tokens
        self._update_backlog(view, running, served)
        admitted = Grants(
            np.array(list(self._granted), np.int32),
            np.array([tokens for _, tokens in self._granted.values()], np.int32),
        )
        slots, tokens_of = zip(*served, admitted, strict=True)
        return Plan(np.concatenate(slots), np.concatenate(tokens_of))

    def _budgets(
        self,
        budget: int,
        running: Sequence[Grants],
        candidates: Sequence[_Candidate],
        *,
        lacks_pages: bool,
    ) -> list[int]:
        """Return the tokens for each class."""
        demands = [grants.total for grants in running]
        waiting = [0 for _ in running]
        for candidate in candidates:
            waiting[candidate.number] += candidate.uncached
        if not lacks_pages:
            return self._shares.divide(budget, list(map(sum, zip(demands, waiting, strict=True))))
        # Running sequences go on, or their pages would never be released.
        first = self._shares.divide(budget, demands)
        rest = self._shares.divide(budget - sum(first), waiting)
        return list(map(sum, zip(first, rest, strict=True)))

    def _candidates(self, view: QueueView, running: Sequence[Grants]) -> list[_Candidate]:
        """Return waiting sequences for the free rows, as many as could use the whole budget."""
        weights, levels = self._shares.weights, self._shares.levels
        demands = [grants.total for grants in running]
        # Tokens that running sequences are assumed to compute before they end.
        ahead = [grants.total + len(grants.slots) * _HORIZON for grants in running]
        lines = [line.without(view.held) for line in self._lines]
        heads = {i: slot for i, line in enumerate(lines) for slot in islice(line, 1)}
        places, pages = view.max_running - len(view.running), view.free_pages
        candidates: list[_Candidate] = []
        # The first without enough pages is included: the engine decides, and no later one may
        # overtake it.
        while places > 0 and pages >= 0:
            hungry = [i for i in heads if demands[i] < view.token_budget]
            if not hungry:
                break
            number = min(hungry, key=lambda i: levels[i] + ahead[i] / weights[i])
            slot = heads.pop(number)
            heads.update((number, behind) for behind in islice(lines[number], 1))
            uncached = view.uncached(slot)
            candidates.append(_Candidate(number, slot, uncached))
            demands[number] += uncached
            ahead[number] += uncached + _HORIZON
            places -= 1
            pages -= -(-uncached // view.page_size)
        return candidates

    def _update_backlog(
        self, view: QueueView, running: Sequence[Grants], served: Sequence[Grants]
    ) -> None:
        """Record which classes would have used more; held sequences want nothing."""
        content = [0 for _ in self._lines]
        for number, _ in self._granted.values():
            content[number] += 1
        for number in view.priority[list(view.held)].tolist():
            content[number] += 1
        self._backlogged = [
            served[i].total < running[i].total or len(line) > content[i]
            for i, line in enumerate(self._lines)
        ]
