"""Least slack first: prompts that can still meet their deadline, the most urgent first."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gatewayd_hooks.helpers.shortage import Shortage
from gatewayd_hooks.preemption import MAX_PREEMPTIONS
from gatewayd_hooks.scheduling import Plan, Priority, QueueView
from gatewayd_sched_slo.config import SloConfig
from gatewayd_sched_slo.slot_set import SlotSet
from gatewayd_sched_slo.step_time_estimate import StepTimeEstimate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources

_CHOICES = 64
"""Number of waiting sequences, in addition to the free rows, that are sorted."""
_LATE = 1e12
"""Minimum slack of sequences that cannot meet their deadline: after all others."""
_NO_SLOTS = np.zeros(0, np.int32)


class _Step(NamedTuple):
    """Sequences and token needs of a step before it is granted."""

    slots: list[int]
    needs: list[int]


class LeastSlack:
    """Slack is the time to the first token's deadline, less the expected duration of the prefill.

    Decodes go first. Then prompts, started or waiting, by slack; those that cannot meet their
    deadline come last, oldest first, but with a share of the tokens.
    """

    def __init__(self, config: SloConfig) -> None:
        self._config = config
        self._wishes = np.array(
            [config.realtime_seconds, config.standard_seconds, config.batch_seconds]
        )
        self._step_time = StepTimeEstimate()
        self._waiting = SlotSet()
        self._shortage = Shortage()
        self._returned: set[int] = set()
        self._credit = 0.0
        self._last: tuple[float, int, NDArray[np.int32]] = (0.0, 0, _NO_SLOTS)

    def open(self, resources: EngineResources) -> None:
        """Do nothing: the view contains all that is needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def enqueue(self, slot: int, view: QueueView, *, front: bool) -> None:
        """Add a waiting sequence."""
        self._shortage.came()
        self._waiting.add(slot)
        self._returned.discard(slot)
        # Batch work has time; of the other classes a user is already reading the answer.
        if front and view.priority[slot] != Priority.BATCH:
            self._returned.add(slot)

    def dequeue(self, slot: int) -> None:
        """Remove a waiting sequence that was admitted or has left."""
        self._waiting.remove(slot)
        self._returned.discard(slot)

    def plan(self, view: QueueView) -> Plan:
        """Choose the next step."""
        self._observe(view)
        lacks_pages = self._shortage.lasts(view)
        running = view.running
        victims = self._victims(view)
        if len(victims):
            running = running[~np.isin(running, victims)]
        needs = view.num_tokens[running] - view.num_computed[running]
        decodes, prompts = running[needs == 1], running[needs > 1]
        left = view.token_budget - len(decodes)
        if left < 0:
            decodes, left = decodes[: view.token_budget], 0
        places = view.max_running - len(running)
        freed = int((-(-view.num_computed[victims] // view.page_size)).sum())
        pages = view.free_pages + freed
        # Waiting sequences get the pages of preempted ones, or come after running ones.
        step = self._prompts(
            view, prompts, left, places, pages, begun_first=lacks_pages and not len(victims)
        )
        slots = np.concatenate([decodes, np.array(step.slots, np.int32)])
        tokens = np.concatenate([np.ones(len(decodes), np.int32), np.array(step.needs, np.int32)])
        self._last = (view.now, int(tokens.sum()), slots)
        return Plan(slots, tokens, victims if len(victims) else None)

    def _observe(self, view: QueueView) -> None:
        """Measure the duration of the last step, if any of its sequences still runs."""
        began, tokens, slots = self._last
        seconds = view.now - began
        # If all have ended the engine may have been idle since, which is no part of the step.
        if tokens and seconds > 0 and len(np.intersect1d(slots, view.running)):
            self._step_time.record_step(tokens, seconds)

    def _wanted(self, view: QueueView, slots: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the deadline of each one's first token, shape ``[n]``."""
        deadline = view.deadline[slots]
        implied = view.arrival[slots] + self._wishes[view.priority[slots]]
        return np.where(np.isfinite(deadline), deadline, implied)

    def _slack(
        self, view: QueueView, slots: NDArray[np.int32], needs: NDArray[np.int32]
    ) -> NDArray[np.float64]:
        """Return the slack; for sequences that will be late, a large value ordered by deadline.

        Args:
            view: the queue.
            slots: shape ``[n]``.
            needs: tokens up to the first generated one, shape ``[n]``.
        """
        step_time, budget = self._step_time, max(1, view.token_budget)
        steps = 1 - (-needs // budget)  # one is in progress
        takes = step_time.token_seconds * needs + step_time.step_seconds * steps
        wanted = self._wanted(view, slots)
        slack = wanted - view.now - takes * self._config.margin
        # Before the first measurement all can still meet their deadline.
        is_late = (slack < 0) & (takes > 0)
        return np.where(is_late, _LATE + wanted, slack)

    def _queue(self, view: QueueView, places: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the waiting sequences with the least slack, in order, and their slack."""
        slots = self._waiting.all
        if view.held:
            slots = slots[~np.isin(slots, list(view.held))]
        slack = self._slack(view, slots, view.num_tokens[slots])
        # Before all others: their clients have part of an answer, and wait for the rest.
        if self._returned:
            slack[np.isin(slots, list(self._returned))] = -_LATE
        _put_first(view, slots, slack)
        most = max(places, 0) + _CHOICES
        if len(slots) > most:
            # The latest ones must not be cut off: they have a share.
            oldest = np.where(slack >= _LATE, slack, np.inf)
            keep = np.union1d(
                np.argpartition(slack, most)[:most], np.argpartition(oldest, _CHOICES)[:_CHOICES]
            )
            slots, slack = slots[keep], slack[keep]
        order = np.lexsort((view.arrival[slots], slack))
        return slots[order], slack[order]

    def _prompts(
        self,
        view: QueueView,
        begun: NDArray[np.int32],
        budget: int,
        places: int,
        pages: int,
        *,
        begun_first: bool,
    ) -> _Step:
        """Distribute a budget among prompts, started and waiting ones."""
        step = _Step([], [])
        if budget < 1:
            return step
        needs = view.num_tokens[begun] - view.num_computed[begun]
        waiting, slack = self._queue(view, places)
        slots = np.concatenate([begun, waiting])
        keys = np.concatenate([self._slack(view, begun, needs), slack])
        _put_first(view, slots, keys)
        order = np.argsort(keys, kind="stable")
        is_late = keys[order] >= _LATE
        if is_late.any() and not is_late.all():
            # Late prompts save their share of each step until it amounts to a whole one, which they
            # get first.
            self._credit = min(self._credit + self._config.late_share * budget, 2.0 * budget)
            if self._credit >= budget:
                order = np.concatenate([order[is_late], order[~is_late]])
        else:
            self._credit = 0.0
        first_is_late = bool(keys[order[0]] >= _LATE) if len(order) else False
        num_begun = len(begun)
        # The sort is stable: within both groups the order stays.
        if begun_first:
            order = order[np.argsort(order >= num_begun, kind="stable")]
        for at in order.tolist():
            slot = int(slots[at])
            if at < num_begun:
                need = int(needs[at])
            elif places < 1 or pages < 0:
                continue
            else:
                need = view.uncached(slot)
                places -= 1
                # The first without enough pages is still granted: the engine decides.
                pages -= -(-need // view.page_size)
            tokens = min(need, budget)
            step.slots.append(slot)
            step.needs.append(tokens)
            budget -= tokens
            if first_is_late and keys[at] >= _LATE:
                self._credit = max(0.0, self._credit - tokens)
            if budget < 1:
                break
        return step

    def _victims(self, view: QueueView) -> NDArray[np.int32]:
        """Return batch sequences to preempt for realtime requests without a row or pages."""
        running, waiting = view.running, self._waiting.all
        if not self._config.victims or not len(running) or not len(waiting):
            return _NO_SLOTS
        urgent = waiting[view.priority[waiting] == Priority.REALTIME]
        if view.held:
            urgent = urgent[~np.isin(urgent, list(view.held))]
        # With free rows, only requests that found no pages need a victim.
        if len(running) < view.max_running:
            urgent = urgent[np.isin(urgent, list(view.unplaced))]
        if not len(urgent):
            return _NO_SLOTS
        may = (view.priority[running] == Priority.BATCH) & ~np.isfinite(view.deadline[running])
        may &= view.preemptions[running] < MAX_PREEMPTIONS
        candidates = running[may]
        newest = np.argsort(-view.arrival[candidates], kind="stable")
        victims: NDArray[np.int32] = candidates[newest][: min(len(urgent), self._config.victims)]
        return victims


def _put_first(view: QueueView, slots: NDArray[np.int32], keys: NDArray[np.float64]) -> None:
    """Set the keys of sequences that an operator prioritized below all others of their classes.

    Args:
        view: the queue.
        slots: shape ``[n]``.
        keys: sort keys; changed in place.
    """
    if not view.urgent:
        return
    is_urgent = np.isin(slots, list(view.urgent))
    classes = view.priority[slots]
    for priority in set(classes[is_urgent].tolist()):
        is_here = classes == priority
        keys[is_here & is_urgent] = np.nextafter(keys[is_here].min(), -np.inf)
