"""One draw a step, weighted by class."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Set
from typing import TYPE_CHECKING

import numpy as np
from gatewayd_hooks.scheduling import Plan, QueueView

from gatewayd_sched_lottery.config import LotteryConfig

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources


class Lottery:
    """Running sequences first, then the winners of a draw among those that wait."""

    def __init__(self, config: LotteryConfig) -> None:
        self._tickets = config.tickets
        self._random = random.Random(config.seed)
        self._returned: dict[int, None] = {}
        self._hopeful: dict[int, int] = {}

    def open(self, resources: EngineResources) -> None:
        """Nothing to learn: the sizes are in every view."""

    def close(self) -> None:
        """Nothing to give back."""

    def enqueue(self, slot: int, view: QueueView, *, front: bool) -> None:
        """Hand out tickets; who ran before needs none."""
        if front:
            self._returned[slot] = None
        else:
            self._hopeful[slot] = self._tickets[view.priority[slot]]

    def dequeue(self, slot: int) -> None:
        """Take the tickets back."""
        self._returned.pop(slot, None)
        self._hopeful.pop(slot, None)

    def plan(self, view: QueueView) -> Plan:
        """Choose the next step."""
        slots: list[int] = []
        tokens: list[int] = []
        budget = view.token_budget
        for slot, wanted in self._wishes(view):
            if budget == 0:
                break
            slots.append(slot)
            tokens.append(min(wanted, budget))
            budget -= tokens[-1]
        return Plan(np.array(slots, np.int32), np.array(tokens, np.int32))

    def _wishes(self, view: QueueView) -> Iterator[tuple[int, int]]:
        """Who would like to compute how much, the most urgent first."""
        wanted = (view.num_tokens - view.num_computed)[view.running]
        order = np.argsort(wanted > 1, kind="stable")
        yield from zip(view.running[order].tolist(), wanted[order].tolist(), strict=True)
        for slot in self._draw(view.max_running - len(view.running), view.held):
            yield slot, view.uncached(slot)

    def _draw(self, places: int, held: Set[int]) -> list[int]:
        """At most so many who wait: those that came back, then the winners."""
        returned = [slot for slot in self._returned if slot not in held][:places]
        # The largest of u^(1/tickets), u uniform: sampling by weight without replacement
        # (Efraimidis and Spirakis, 2006).
        luck = {
            slot: self._random.random() ** (1 / tickets)
            for slot, tickets in self._hopeful.items()
            if slot not in held
        }
        return returned + heapq.nlargest(places - len(returned), luck, key=luck.__getitem__)
