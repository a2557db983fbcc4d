"""Tenants take turns by what they have had: a virtual time for each, the lowest goes first.

A tenant's virtual time is the cost of the tokens computed for it (the counters of Sheng et al.,
"Fairness in Serving Large Language Models", OSDI 2024). One that comes back after a pause begins
where the others are (start-time fair queueing, Goyal et al. 1996): nobody saves up a claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from gatewayd_hooks.scheduling import Plan, QueueView
from gatewayd_hooks.waiting import WaitingLine

from gatewayd_sched_fairshare.config import FairshareSettings

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources
    from numpy.typing import NDArray


class FairshareScheduler:
    """Who computes how many tokens in the next step."""

    def __init__(self, config: FairshareSettings) -> None:
        self._output_cost = config.output_cost
        self._max_chunk = config.max_chunk
        self._view: QueueView | None = None
        self._lines: dict[int, WaitingLine] = {}
        self._tenant_of: dict[int, int] = {}
        self._time: dict[int, float] = {}
        self._now = 0.0
        """The least virtual time of those who had something to do."""
        self._promised: dict[int, int] = {}
        """Grants of the last plan to sequences that waited: paid for if they were admitted."""

    def open(self, resources: EngineResources) -> None:
        """The sizes of the engine are in every view too."""

    def close(self) -> None:
        """Nothing to give back."""

    def enqueue(self, slot: int, view: QueueView, *, front: bool) -> None:
        """A sequence waits; a tenant that was away begins where the others are."""
        self._view = view
        tenant = int(view.tenant[slot])
        if tenant not in self._lines:
            self._lines[tenant] = WaitingLine()
            if tenant not in view.tenant[view.running]:
                self._time[tenant] = max(self._time.get(tenant, 0.0), self._now)
        self._lines[tenant].enter(slot, float(view.arrival[slot]), front=front)
        self._tenant_of[slot] = tenant

    def dequeue(self, slot: int) -> None:
        """It was admitted, and is paid for, or has gone."""
        tenant = self._tenant_of.pop(slot, None)
        if tenant is None:
            return
        self._lines[tenant].leave(slot)
        if not len(self._lines[tenant]):
            del self._lines[tenant]
        granted = self._promised.pop(slot, 0)
        if granted and self._view is not None and slot in self._view.running:
            self._time[tenant] += granted

    def plan(self, view: QueueView) -> Plan:
        """Hand the budget out: to those that run, then tenant by tenant."""
        self._settle(view)
        self._promised.clear()
        slots: list[int] = []
        tokens: list[int] = []
        budget = view.token_budget
        for slot, wanted in self._wishes(view):
            if budget == 0:
                break
            slots.append(slot)
            tokens.append(min(wanted, self._max_chunk, budget))
            budget -= tokens[-1]
        self._charge(view, slots, tokens)
        return Plan(np.array(slots, np.int32), np.array(tokens, np.int32))

    def _settle(self, view: QueueView) -> None:
        """Move the clock on to the tenant that is furthest behind."""
        active = {*self._lines, *view.tenant[view.running].tolist()}
        if active:
            least = min(self._time.get(tenant, 0.0) for tenant in active)
            self._now = max(self._now, least)

    def _wishes(self, view: QueueView) -> Iterator[tuple[int, int]]:
        """Who would compute how much: those that decode, that have begun, that wait."""
        slots = view.running
        wanted = (view.num_tokens - view.num_computed)[slots]
        behind = np.array([self._time.get(t, 0.0) for t in view.tenant[slots].tolist()])
        order = np.lexsort((behind, wanted > 1))
        yield from zip(slots[order].tolist(), wanted[order].tolist(), strict=True)
        yield from self._admissions(view)

    def _admissions(self, view: QueueView) -> Iterator[tuple[int, int]]:
        """Who waits, each time the first of the tenant that would then have had least."""
        lines = {tenant: line.without(view.held) for tenant, line in self._lines.items()}
        times = {tenant: self._time[tenant] for tenant in lines}
        pages = view.free_pages
        for _ in range(view.max_running - len(view.running)):
            if not lines or pages < 0:
                return
            tenant = min(lines, key=lambda each: (times[each], each))
            slot = next(lines[tenant], None)
            if slot is None:
                del lines[tenant]
                continue
            uncached = view.uncached(slot)
            times[tenant] += uncached
            pages -= -(-uncached // view.page_size)
            yield slot, uncached

    def _charge(self, view: QueueView, slots: list[int], tokens: list[int]) -> None:
        """Let those pay who run; who waits pays when it is admitted."""
        running = set(view.running.tolist())
        needs: NDArray[np.int32] = view.num_tokens - view.num_computed
        for slot, granted in zip(slots, tokens, strict=True):
            if slot not in running:
                self._promised[slot] = granted
                continue
            tenant = int(view.tenant[slot])
            cost = self._output_cost if needs[slot] == 1 else granted
            self._time[tenant] = self._time.get(tenant, 0.0) + cost
