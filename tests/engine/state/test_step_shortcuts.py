"""What a step of decoding sequences leaves out: the results are those of the general way."""

from __future__ import annotations

import itertools
import random
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from gatewayd_engine.core.token_commit import CommittedTokens, commit_tokens
from gatewayd_engine.process.plugin_faults import StrategyFault
from gatewayd_engine.scheduling.page_growth import PageGrowth
from gatewayd_engine.scheduling.plan_check import check
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import StepBatch, gather
from gatewayd_engine.state.step_result import Tokens
from gatewayd_hooks.scheduling import Plan

_PAGE = 4
_EOS = np.array([2, 3], np.int32)


def made(starts: list[int], limits: list[int]) -> tuple[Queue, RunningBatch]:
    """A queue whose slots are running sequences that decode, each in the row of its number."""
    n = len(starts)
    queue = Queue(2 * n, 64, n, _PAGE, lambda slot: 0)
    rows = RunningBatch(n, 64, _PAGE)
    rows.tokens[:] = np.random.default_rng(0).integers(5, 1000, rows.tokens.shape)
    rows.block_table[:] = np.random.default_rng(1).integers(0, 99, rows.block_table.shape)
    slots = np.arange(n)
    queue.row[slots] = queue.ids[slots] = slots
    queue.ids[slots] += 100
    queue.view.num_computed[slots] = starts
    queue.view.num_tokens[slots] = np.array(starts) + 1
    queue.limit[slots] = limits
    queue.prompt_len[slots] = np.array(starts) + 1 - slots % 2
    for slot in slots.tolist():
        queue.waiting[slot] = None
        queue.start_running(slot)
    return queue, rows


def gathered(queue: Queue, rows: RunningBatch, order: list[int]) -> StepBatch:
    """The batch of slots in an order, as a plan names them."""
    slots = np.array(order, np.int32)
    ones = np.ones(len(order), np.int32)
    view = queue.view
    return gather(
        rows,
        slots,
        queue.row[slots],
        queue.ids[slots],
        view.num_computed[slots],
        ones,
        view.num_tokens[slots],
        None,
        queue.placeholders[slots],
    )


def test_sequences_that_are_in_order_are_gathered_as_others_are() -> None:
    starts = [30, 17, 9, 5]
    queue, rows = made(starts, [60] * 4)
    queue.placeholders[2] = 1
    sorted_, shuffled = gathered(queue, rows, [0, 1, 2, 3]), gathered(queue, rows, [2, 0, 3, 1])
    for name in (one.name for one in fields(StepBatch)):
        ours, others = getattr(sorted_, name), getattr(shuffled, name)
        np.testing.assert_array_equal(ours, others, err_msg=name)
        assert getattr(ours, "dtype", None) == getattr(others, "dtype", None), name
    assert sorted_.block_table.shape[1] == -(-31 // _PAGE)
    assert sorted_.unknown is not None
    assert sorted_.unknown.tolist() == [2]


def test_a_gathered_batch_shares_no_memory_with_a_plan() -> None:
    queue, rows = made([5, 4], [60, 60])
    counts = np.ones(2, np.int32)
    slots = np.arange(2, dtype=np.int32)
    view = queue.view
    columns = queue.row[slots], queue.ids[slots], view.num_computed[slots]
    batch = gather(rows, slots, *columns, counts, view.num_tokens[slots])
    assert not np.shares_memory(batch.counts, counts)


@pytest.mark.parametrize("seed", range(8))
def test_one_token_each_is_committed_as_the_first_of_several(seed: int) -> None:
    draw = random.Random(seed)
    n = 9
    starts = sorted((draw.randrange(5, 30) for _ in range(n)), reverse=True)
    limits = [start + draw.choice((2, 3, 9)) for start in starts]
    chosen = np.array([[draw.choice((2, 3, 7, 8))] for _ in range(n)], np.int32)
    ignores = np.array([draw.random() < 0.3 for _ in range(n)])
    stops = [draw.random() < 0.5 for _ in range(n)]
    least = [draw.choice((0, start + 5)) for start in starts]

    def committed(width: int) -> tuple[CommittedTokens, Tokens, list[bytes]]:
        queue, rows = made(starts, limits)
        rows.ignores_eos[:] = ignores
        rows.min_len[:] = least
        rows.has_stop_tokens[:] = stops
        rows.stop_tokens = [frozenset({7} if stop else ()) for stop in stops]
        batch = gathered(queue, rows, list(range(n)))
        entries = np.array([i for i in range(n) if i != 4], np.int64)
        ids = np.pad(chosen, ((0, 0), (0, width - 1)))[entries]
        tokens = Tokens(entries, ids, np.ones(n - 1, np.int64), np.zeros_like(ids, np.int64))
        found = commit_tokens(queue, rows, batch, tokens, _EOS)
        view = queue.view
        state = [rows.tokens, view.num_tokens, view.num_computed]
        return found, tokens, [column.tobytes() for column in state]

    short, tokens, state = committed(1)
    general, other, expected = committed(2)
    for name in ("kept", "visible", "over", "stop", "begins"):
        ours, theirs = getattr(short, name), getattr(general, name)
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
        assert ours.dtype == theirs.dtype, name
    np.testing.assert_array_equal(tokens.counts, other.counts)
    assert state == expected


def test_a_plan_of_all_that_runs_is_checked_for_its_tokens() -> None:
    queue, _ = made([5, 4], [60, 60])
    running = queue.view.running
    check(Plan(running, np.ones(2, np.int32)), queue)
    for tokens, reason in (([1, 2], "more than its sequence needs"), ([1, 0], "below 1")):
        with pytest.raises(StrategyFault, match=reason):
            check(Plan(running, np.array(tokens, np.int32)), queue)
    with pytest.raises(StrategyFault, match="twice"):
        check(Plan(running[[0, 0]], np.ones(2, np.int32)), queue)


@pytest.mark.parametrize("seed", range(20))
def test_steps_overlap_without_counting_pages_only_where_no_plan_can_need_more(seed: int) -> None:
    draw = random.Random(seed)
    queue, _ = made([draw.randrange(1, 60) for _ in range(3)], [64] * 3)
    view, slots = queue.view, np.arange(3)
    queue.num_pages[slots] = -(-view.num_computed[slots] // _PAGE)
    view.num_tokens[slots] += np.array([draw.randrange(9) for _ in slots], np.int32)
    view.token_budget = draw.randrange(3, 14)
    needs = view.num_tokens[slots] - view.num_computed[slots]
    plans = [
        np.array(plan)
        for plan in itertools.product(*(range(int(need) + 1) for need in needs))
        if sum(plan) <= view.token_budget
    ]
    most = max(
        int((-(-(view.num_computed[slots] + plan) // _PAGE) - queue.num_pages[slots]).sum())
        for plan in plans
    )
    pages = SimpleNamespace(num_free=0, num_available=0, quotas=None)
    tables = SimpleNamespace(forked=set())
    unused: Any = None
    growth = PageGrowth(queue, cast("Any", pages), cast("Any", tables), unused, unused, _PAGE)
    for pages.num_available in range(most):
        assert growth.may_preempt
    pages.num_available = view.token_budget // _PAGE + 3
    assert not growth.may_preempt


def test_a_scheduler_cannot_change_what_is_running() -> None:
    queue, _ = made([5, 4], [60, 60])
    with pytest.raises(ValueError, match="read-only"):
        queue.view.running[0] = 1
