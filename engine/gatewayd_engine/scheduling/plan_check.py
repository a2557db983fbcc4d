"""Validation of a scheduler's plan against the rules of ``Plan``: reject, never repair.

A scheduler may also grant nothing, but not for long.
"""

from __future__ import annotations

import time

import numpy as np

from gatewayd_engine.process.plugin_faults import StrategyFault
from gatewayd_engine.state.queue import Queue
from gatewayd_hooks.scheduling import Plan, QueueView
from gatewayd_hooks.strategy import Kind

MAX_IDLE_SECONDS = 1.0


class IdleLimit:
    """Time limit for a scheduler that plans nothing while sequences wait."""

    def __init__(self) -> None:
        self._since: float | None = None

    def restart(self) -> None:
        """Restart the time limit."""
        self._since = None

    def record(self, *, is_idle: bool) -> None:
        """Record whether a plan was empty.

        Raises:
            StrategyFault: nothing was planned for too long.
        """
        if not is_idle:
            self._since = None
            return
        now = time.monotonic()
        if self._since is None:
            self._since = now
        elif now - self._since > MAX_IDLE_SECONDS:
            # The default scheduler that takes over gets the whole limit.
            self._since = None
            _refuse(f"nothing was planned for {MAX_IDLE_SECONDS:g} s while sequences wait")


def check(plan: Plan, queue: Queue) -> None:
    """Validate a plan.

    Raises:
        StrategyFault: the plan breaks a rule, which the message names.
    """
    if not isinstance(plan, Plan):
        _refuse(f"returned {plan!r:.80} from plan, not a Plan")
    view = queue.view
    slots, tokens = plan.slots, plan.tokens
    for column in (slots, tokens):
        if not isinstance(column, np.ndarray) or column.dtype.kind not in "iu":
            _refuse(f"returned a Plan with {column!r:.80}, not an array of integers")
    if slots.shape != tokens.shape or slots.ndim != 1:
        _refuse(f"slots {slots.shape} and tokens {tokens.shape} differ in shape")
    num_running = len(view.running) - _check_preempted(plan, view)
    if not len(slots):
        return
    capacity = len(view.num_tokens)
    # In most steps everything that runs is granted, as the queue shows it.
    is_known = slots is view.running
    # Before the checks that index with the slots.
    if not is_known and (int(slots.min()) < 0 or int(slots.max()) >= capacity):
        _refuse("a slot is out of range")
    if not is_known and np.bincount(slots, minlength=capacity).max() > 1:
        _refuse("a slot is granted twice")
    if int(tokens.min()) < 1:
        _refuse("a grant is below 1 token")
    total = int(tokens.sum())
    if total > view.token_budget:
        _refuse(f"{total} tokens are over the budget of {view.token_budget}")
    if bool((tokens > view.num_tokens[slots] - view.num_computed[slots]).any()):
        _refuse("a grant is more than its sequence needs")
    if is_known:
        return
    is_waiting = queue.row[slots] < 0
    admitted = slots[is_waiting].tolist()
    if any(slot not in queue.waiting for slot in admitted):
        _refuse("a granted slot is neither running nor waiting")
    if num_running + len(admitted) > view.max_running:
        _refuse(f"{len(admitted)} admissions exceed the limit of {view.max_running} rows")


def _check_preempted(plan: Plan, view: QueueView) -> int:
    """Validate the preempted slots; returns how many there are."""
    preempted = plan.preempt
    if preempted is None:
        return 0
    is_array = isinstance(preempted, np.ndarray) and preempted.dtype.kind in "iu"
    if not is_array or preempted.ndim != 1:
        _refuse(f"returned a Plan with {preempted!r:.80} to preempt, not a 1-D array of integers")
    if len(np.unique(preempted)) < len(preempted):
        _refuse("a slot is preempted twice")
    if not np.isin(preempted, view.running).all():
        _refuse("a preempted slot is not running")
    if np.isin(preempted, plan.slots).any():
        _refuse("a slot is preempted and granted")
    return len(preempted)


def _refuse(reason: str) -> None:
    raise StrategyFault(Kind.SCHEDULER, reason)
