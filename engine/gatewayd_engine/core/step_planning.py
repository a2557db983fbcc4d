"""Planning of a step: the scheduler's plan, pages, drafts, and the batch gathered from them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial

from gatewayd_engine.core.lifecycle import SequenceLifecycle
from gatewayd_engine.core.operator_actions import OperatorActions
from gatewayd_engine.core.telemetry.time_attribution import TimeAttribution
from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.process.plugin_faults import attribute_faults
from gatewayd_engine.scheduling.placement import Placement
from gatewayd_engine.scheduling.plan_check import IdleLimit, check
from gatewayd_engine.speculation.proposer import Speculation
from gatewayd_engine.state.in_flight import InFlight
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import StepBatch, gather
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.scheduling import Plan
from gatewayd_hooks.strategy import Kind


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StepPlanning:
    """Planning of batches.

    Args:
        queue: the engine's sequence table.
        rows: batch rows with the token ids.
        pages: page allocator.
        placement: allocates the pages of a plan.
        strategies: with the scheduler.
        lifecycle: recovers from faults of the drafter.
        speculation: drafts tokens.
        operator: pauses sequences between two steps.
        attribution: records what was planned.
        reads_tables: whether batches need block tables.

    Attributes:
        idle_limit: time limit of a scheduler that plans nothing.
    """

    _queue: Queue
    _rows: RunningBatch
    _pages: Pages
    _placement: Placement
    _strategies: Strategies
    _lifecycle: SequenceLifecycle
    _speculation: Speculation
    _operator: OperatorActions
    _attribution: TimeAttribution
    _reads_tables: bool
    idle_limit: IdleLimit = field(default_factory=IdleLimit, init=False)

    def next_batch(self, *, is_in_flight: bool) -> StepBatch | None:
        """Plan the next step, and gather its batch; None if there is nothing to compute now.

        Args:
            is_in_flight: whether another step has been launched and has not completed.
        """
        queue, view = self._queue, self._queue.view
        try:
            self._operator.pause_pending()
        # The step in flight computes a sequence to be paused, and must complete first.
        except InFlight:
            return None
        # Without this an empty plan would be held against the scheduler.
        if len(queue.paused) == len(queue):
            return None
        self._placement.deferral.review()
        view.free_pages = self._pages.num_available
        view.now = time.monotonic()
        with attribute_faults(Kind.SCHEDULER):
            plan: Plan = self._strategies.plan.schedule(view)
            check(plan, queue)
        try:
            slots, counts = self._placement.place(plan)
        # The same for a sequence to be preempted: the next call plans again.
        except InFlight:
            return None
        self._attribution.record_plan(int(counts.sum()))
        # A scheduler may plan nothing while a tier, a compilation or the step in flight is awaited.
        waits = self._placement.deferral.waits_for_external or is_in_flight
        self.idle_limit.record(is_idle=not len(slots) and not waits)
        if not len(slots):
            return None
        # After placement: drafts use only tokens and pages that the plan has left.
        draft = partial(self._speculation.draft, slots, counts)
        drafts = self._lifecycle.recovery.fenced(draft, redo=True)
        return gather(
            self._rows,
            slots,
            queue.row[slots],
            queue.ids[slots],
            view.num_computed[slots],
            counts,
            view.num_tokens[slots],
            drafts,
            queue.placeholders[slots] if is_in_flight else None,
            self._reads_tables,
        )
