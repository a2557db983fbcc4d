"""Checks a scheduler's plan against the rules of ``Plan``: refuse, never repair."""

from __future__ import annotations

import numpy as np

from gatewayd_engine.faults import StrategyFault
from gatewayd_engine.queue import Queue
from gatewayd_hooks.scheduling import Plan
from gatewayd_hooks.strategy import Kind


def check(plan: Plan, queue: Queue) -> None:
    """Verify a plan.

    Raises:
        StrategyFault: it breaks a rule, which the message names.
    """
    view = queue.view
    slots, tokens = plan.slots, plan.tokens
    if slots.shape != tokens.shape or slots.ndim != 1:
        _refuse(f"slots {slots.shape} and tokens {tokens.shape} differ in shape")
    if not len(slots):
        return
    capacity = len(view.num_tokens)
    if int(slots.min()) < 0 or int(slots.max()) >= capacity:
        _refuse("a slot is out of range")
    if np.bincount(slots, minlength=capacity).max() > 1:
        _refuse("a slot is granted twice")
    if int(tokens.min()) < 1:
        _refuse("a grant is below 1 token")
    total = int(tokens.sum())
    if total > view.token_budget:
        _refuse(f"{total} tokens are over the budget of {view.token_budget}")
    if bool((tokens > view.num_tokens[slots] - view.num_computed[slots]).any()):
        _refuse("a grant is more than its sequence needs")
    is_waiting = queue.row[slots] < 0
    admitted = slots[is_waiting].tolist()
    if any(slot not in queue.waiting for slot in admitted):
        _refuse("a granted slot is neither running nor waiting")
    if len(queue.running) + len(admitted) > view.max_running:
        _refuse(f"{len(admitted)} more would run than the {view.max_running} that may")


def _refuse(reason: str) -> None:
    raise StrategyFault(Kind.SCHEDULER, reason)
