"""Scheduler conformance: rejects invalid plans."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gatewayd_hooks.scheduling import Plan, QueueView
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.scheduling import SchedulerConformance

Verdict = Callable[..., list[str]]
Catches = Callable[..., bool]


def test_a_sound_one_passes(verdict: Verdict) -> None:
    assert verdict(SchedulerConformance, Kind.SCHEDULER, "fcfs") == []


def replan(scheduler: Any, change: Callable[[Plan, QueueView], Plan]) -> None:
    """Change what a scheduler plans."""
    plan = scheduler.plan
    scheduler.plan = lambda view: change(plan(view), view)


# Each of these breaks one rule of a sound strategy, which is changed in place.


def one_token_too_many(scheduler: Any) -> None:
    replan(scheduler, lambda plan, view: Plan(plan.slots, plan.tokens + 1))


def more_than_the_budget(scheduler: Any) -> None:
    def change(plan: Plan, view: QueueView) -> Plan:
        needs = view.num_tokens[view.running] - view.num_computed[view.running]
        return Plan(view.running, needs) if needs.sum() > view.token_budget else plan

    replan(scheduler, change)


def no_tokens_for_someone(scheduler: Any) -> None:
    def change(plan: Plan, view: QueueView) -> Plan:
        return Plan(plan.slots, np.where(np.arange(len(plan.tokens)) == 1, 0, plan.tokens))

    replan(scheduler, change)


def a_slot_twice(scheduler: Any) -> None:
    def change(plan: Plan, view: QueueView) -> Plan:
        last = plan.tokens[-1:] - 1
        if not len(last) or not last[0]:
            return plan
        tokens = np.concatenate([plan.tokens[:-1], last, [1]])
        return Plan(np.concatenate([plan.slots, plan.slots[-1:]]), tokens)

    replan(scheduler, change)


def a_stranger(scheduler: Any) -> None:
    replan(scheduler, lambda plan, view: Plan(plan.slots + 1, plan.tokens))


def more_than_may_run(scheduler: Any) -> None:
    plan = scheduler.plan

    def broken(view: QueueView) -> Any:
        limit, view.max_running = view.max_running, view.max_running + 1
        try:
            return plan(view)
        finally:
            view.max_running = limit

    scheduler.plan = broken


def never_forgets(scheduler: Any) -> None:
    scheduler.dequeue = lambda slot: None


def must_know_who_leaves(scheduler: Any) -> None:
    known: set[int] = set()
    enqueue, dequeue = scheduler.enqueue, scheduler.dequeue

    def strict_enqueue(slot: int, view: QueueView, *, front: bool) -> None:
        known.add(slot)
        enqueue(slot, view, front=front)

    def strict_dequeue(slot: int) -> None:
        known.remove(slot)
        dequeue(slot)

    scheduler.enqueue, scheduler.dequeue = strict_enqueue, strict_dequeue


def batch_starves(scheduler: Any) -> None:
    def change(plan: Plan, view: QueueView) -> Plan:
        keep = (view.priority[plan.slots] < 2) | np.isin(plan.slots, view.running)
        return Plan(plan.slots[keep], plan.tokens[keep])

    replan(scheduler, change)


def whole_prompts_only(scheduler: Any) -> None:
    def change(plan: Plan, view: QueueView) -> Plan:
        keep = plan.tokens == view.num_tokens[plan.slots] - view.num_computed[plan.slots]
        return Plan(plan.slots[keep], plan.tokens[keep])

    replan(scheduler, change)


def the_preempted_never_return(scheduler: Any) -> None:
    enqueue = scheduler.enqueue

    def broken(slot: int, view: QueueView, *, front: bool) -> None:
        if not front:
            enqueue(slot, view, front=front)

    scheduler.enqueue = broken


def throws_dice(scheduler: Any) -> None:
    dice = random.Random()  # seeded by the clock on purpose

    def change(plan: Plan, view: QueueView) -> Plan:
        order = list(range(len(plan.slots)))
        dice.shuffle(order)
        return Plan(plan.slots[order], plan.tokens[order])

    replan(scheduler, change)


def writes_to_a_column(scheduler: Any) -> None:
    plan = scheduler.plan

    def broken(view: QueueView) -> Any:
        view.num_computed[:1] += 0
        return plan(view)

    scheduler.plan = broken


def ignores_the_prefix_cache(scheduler: Any) -> None:
    plan = scheduler.plan

    def broken(view: QueueView) -> Any:
        uncached, view.uncached = view.uncached, lambda slot: int(view.num_tokens[slot])
        try:
            return plan(view)
        finally:
            view.uncached = uncached

    scheduler.plan = broken


def grants_the_held(scheduler: Any) -> None:
    plan = scheduler.plan

    def broken(view: QueueView) -> Any:
        held, view.held = view.held, frozenset()
        try:
            return plan(view)
        finally:
            view.held = held

    scheduler.plan = broken


def lets_those_who_wait_go_first(scheduler: Any) -> None:
    def change(plan: Plan, view: QueueView) -> Plan:
        waits = ~np.isin(plan.slots, view.running)
        return Plan(plan.slots[waits], plan.tokens[waits]) if waits.any() else plan

    replan(scheduler, change)


@pytest.mark.parametrize(
    "broken",
    [
        one_token_too_many,
        more_than_the_budget,
        no_tokens_for_someone,
        a_slot_twice,
        a_stranger,
        more_than_may_run,
        never_forgets,
        must_know_who_leaves,
        batch_starves,
        whole_prompts_only,
        the_preempted_never_return,
        throws_dice,
        writes_to_a_column,
        ignores_the_prefix_cache,
        grants_the_held,
        lets_those_who_wait_go_first,
    ],
)
def test_a_broken_one_fails(catches: Catches, broken: Callable[[Any], None]) -> None:
    assert catches(SchedulerConformance, Kind.SCHEDULER, "fcfs", broken)
