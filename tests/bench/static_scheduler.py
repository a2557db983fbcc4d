"""Static batching scheduler: the baseline for continuous batching.

A batch is filled once, from the front of the queue, and nobody joins until its last member has
ended. Members that end early leave at once, which is kinder than batching by padding.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.scheduling import Plan, QueueView


class StaticScheduler:
    """One batch after the other."""

    def __init__(self) -> None:
        self._queue: deque[int] = deque()
        self._joining: deque[int] = deque()

    def open(self, resources: EngineResources) -> None:
        """Nothing to learn."""

    def close(self) -> None:
        """Nothing to release."""

    def enqueue(self, slot: int, view: QueueView, *, front: bool) -> None:
        """Wait; a preempted member comes back into its batch."""
        if front:
            self._joining.appendleft(slot)
        else:
            self._queue.append(slot)

    def dequeue(self, slot: int) -> None:
        """Admitted or gone."""
        for waiting in (self._joining, self._queue):
            if slot in waiting:
                waiting.remove(slot)

    def plan(self, view: QueueView) -> Plan:
        """Members that run, then members that have yet to join."""
        if not len(view.running) and not self._joining:
            for _ in range(min(view.max_running, len(self._queue))):
                self._joining.append(self._queue.popleft())
        slots: list[int] = []
        tokens: list[int] = []
        budget = view.token_budget
        for slot in view.running.tolist():
            count = min(int(view.num_tokens[slot] - view.num_computed[slot]), budget)
            if count:
                slots.append(slot)
                tokens.append(count)
                budget -= count
        for slot in self._joining:
            if not budget:
                break
            count = min(view.uncached(slot), budget)
            slots.append(slot)
            tokens.append(count)
            budget -= count
        return Plan(np.array(slots, np.int32), np.array(tokens, np.int32))
