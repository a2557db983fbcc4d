"""``priority``: order, admission, planning speed."""

import time

import numpy as np
import pytest

from gatewayd_hooks.scheduling import Priority, QueueView
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_sched_priority.config import PriorityConfig
from gatewayd_sched_priority.strategy import WeightedClasses
from tests.plugins.scheduling.fake_queue import granted
from tests.plugins.scheduling.priority_classes import BATCH, REALTIME, STANDARD, Load, queue_of


def test_a_running_sequence_gets_nothing_while_its_class_has_used_its_share() -> None:
    queue = queue_of(max_batch_tokens=4, max_running=32)
    batch = [queue.arrive(1, 100, priority=BATCH) for _ in range(4)]
    assert len(granted(queue)) == 4
    realtime = [queue.arrive(1, 100, priority=REALTIME) for _ in range(12)]
    for _ in range(3):
        queue.step()
    steps = [granted(queue) for _ in range(22)]
    batch_tokens = sum(step.get(sequence, 0) for step in steps for sequence in batch)
    # An eleventh of the 88, to a rounding.
    assert batch_tokens == pytest.approx(8, abs=1)
    assert any(sequence not in step for step in steps for sequence in batch)
    assert all(sequence.computed for sequence in realtime[:4])


def test_inside_a_class_it_is_first_come_first_served_and_decodes_first() -> None:
    queue = queue_of(max_batch_tokens=16, max_running=4)
    short = queue.arrive(4, 50, priority=BATCH)
    queue.step()
    long = queue.arrive(100, 5, priority=BATCH)
    queue.arrive(3, 5, priority=BATCH)
    assert granted(queue) == {short: 1, long: 15}
    assert granted(queue) == {short: 1, long: 15}


def test_decodes_go_first_even_where_another_scheduler_admitted_a_prompt_before_them() -> None:
    queue = queue_of(max_batch_tokens=64)
    long = queue.arrive(60, 9)
    short = queue.arrive(4, 50)
    queue.step()
    queue.view.num_computed[long.slot] = 20
    queue.view.token_budget = 10
    assert granted(queue) == {short: 1, long: 9}


def test_the_preempted_go_first_in_their_own_class_only() -> None:
    queue = queue_of(max_batch_tokens=1000, max_running=2)
    a, b = (queue.arrive(5, 9, priority=BATCH) for _ in range(2))
    queue.step()
    queue.arrive(5, 9, priority=BATCH)
    realtime = queue.arrive(5, 9, priority=REALTIME)
    queue.preempt(b)
    queue.preempt(a)
    assert list(granted(queue)) == [realtime, a]


def test_free_places_are_given_by_weight_before_a_token_is_computed() -> None:
    """All at once, where one class could take all places that it lacks tokens for."""
    queue = queue_of(max_batch_tokens=10_000, max_running=16)
    for number in Priority:
        for _ in range(20):
            queue.arrive(10, 10, priority=number)
    admitted = [sequence.priority for sequence in granted(queue)]
    assert [admitted.count(number) for number in Priority] == [10, 5, 1]


def test_places_stay_near_their_shares_and_do_not_swing_from_class_to_class() -> None:
    """What a class is given now it computes much later: an impatient scheduler overshoots."""
    queue = queue_of(max_batch_tokens=4096, max_running=16)
    load = Load(queue, (10, 10), (20, 200), depth=20)
    for _ in range(4000):
        load.run(1)
        held = [sequence.priority for sequence in queue.running]
        if len(held) > 12:
            assert 6 <= held.count(REALTIME) <= 11
            assert 2 <= held.count(STANDARD) <= 6
            assert held.count(BATCH) <= 2


def test_a_class_that_was_granted_but_found_no_pages_keeps_its_credit() -> None:
    queue = queue_of(max_batch_tokens=512, num_pages=10, page_size=16)
    occupant = queue.arrive(100, 60, priority=BATCH)
    queue.step()
    first = queue.arrive(140, 5, priority=REALTIME)
    while not queue.finished:
        assert first in granted(queue)
        assert first.computed == 0
    assert queue.finished == [occupant]
    later = [queue.arrive(140, 5, priority=BATCH) for _ in range(2)]
    second = queue.arrive(140, 5, priority=REALTIME)
    while len(queue):
        queue.step()
    assert queue.finished == [occupant, first, second, *later]


def test_a_prompt_that_waits_for_pages_leaves_tokens_to_those_that_have_them() -> None:
    queue = queue_of(num_pages=8, page_size=4, max_batch_tokens=16)
    runs = queue.arrive(14, 16, priority=BATCH)
    queue.step()
    waits = queue.arrive(30, 2, priority=REALTIME)
    for _ in range(25):
        queue.step()
    assert queue.finished == [runs, waits]


def test_one_waiting_request_of_each_class_is_admitted_when_there_is_room() -> None:
    queue = queue_of(max_batch_tokens=100)
    sequences = [queue.arrive(10, 2, priority=number) for number in Priority]
    assert granted(queue) == dict.fromkeys(sequences, 10)


def test_a_step_is_planned_within_a_millisecond() -> None:
    """256 running and 10,000 waiting of all classes; it takes about a tenth of the bound."""
    num, waiting = 256, 10_000
    total = num + waiting
    asked: list[int] = []

    def uncached(slot: int) -> int:
        asked.append(slot)
        return 500

    view = QueueView(
        running=np.arange(num, dtype=np.int32),
        num_tokens=np.full(total, 500, np.int32),
        num_computed=np.full(total, 499, np.int32),
        priority=(np.arange(total) % 3).astype(np.int8),
        tenant=np.zeros(total, np.int32),
        arrival=np.arange(total, dtype=np.float64),
        token_budget=2048,
        max_running=num + 4,
        free_pages=10**6,
        page_size=16,
        uncached=uncached,
    )
    scheduler = WeightedClasses(PriorityConfig())
    scheduler.open(engine_resources())
    for slot in range(num, total):
        scheduler.enqueue(slot, view, front=False)
    times = []
    asked.clear()
    for _ in range(50):
        began = time.thread_time()
        scheduler.plan(view)
        times.append(time.thread_time() - began)
    assert min(times) < 1e-3
    assert len(asked) <= 4 * 50


def test_no_more_waiting_sequences_are_looked_at_than_could_use_the_budget() -> None:
    queue = queue_of(max_batch_tokens=100, max_running=1000)
    for _ in range(100):
        queue.arrive(20, 2)
    asked: list[int] = []
    uncached = queue.view.uncached

    def counted(slot: int) -> int:
        asked.append(slot)
        return uncached(slot)

    queue.view.uncached = counted
    assert len(granted(queue)) == 5
    assert len(asked) == 5
