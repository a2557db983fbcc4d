"""``slo``: most deadlines met at overload, no starvation."""

from __future__ import annotations

import time

import numpy as np
import pytest

from gatewayd_hooks.scheduling import Priority, QueueView
from gatewayd_hooks.testing.fakes import FakeQueue, engine_resources
from gatewayd_sched_fcfs.config import FcfsConfig
from gatewayd_sched_fcfs.strategy import Fcfs
from gatewayd_sched_slo.config import SloConfig
from gatewayd_sched_slo.slot_set import SlotSet
from gatewayd_sched_slo.step_time_estimate import StepTimeEstimate
from gatewayd_sched_slo.strategy import LeastSlack
from tests.plugins.scheduling.fake_queue import granted
from tests.plugins.scheduling.simulated_traffic import Ask, Machine, Run, poisson

REALTIME, STANDARD, BATCH = Priority
SECONDS = 60.0


def slo_queue(config: SloConfig | None = None, **sizes: int) -> FakeQueue:
    resources = engine_resources(**{"num_pages": 10**6, **sizes})
    scheduler = LeastSlack(config or SloConfig())
    scheduler.open(resources)
    return FakeQueue(scheduler, resources)


def overload(rate: float, seed: int = 3) -> list[Ask]:
    """Long prompts and short answers; the machine does about nine a second."""
    return poisson(rate, SECONDS, seed, (200, 1400), (5, 40), deadline=1.0)


@pytest.mark.parametrize("seed", [3, 4])
def test_at_twice_the_load_goodput_is_more_than_half_again_that_of_fcfs(seed: int) -> None:
    asks = overload(18, seed)
    first = Run(Machine(), Fcfs(FcfsConfig())).play(asks).goodput(SECONDS)
    slack = Run(Machine(), LeastSlack(SloConfig())).play(asks).goodput(SECONDS)
    assert slack >= 1.5 * first
    assert slack > 5


def test_below_the_load_everybody_is_in_time() -> None:
    run = Run(Machine(), LeastSlack(SloConfig())).play(overload(4))
    late = [answered for answered in run.answered if not answered.is_in_time]
    assert len(late) < 0.02 * len(run.answered)


def test_whoever_can_wait_least_goes_first_whatever_came_first() -> None:
    queue = slo_queue(max_batch_tokens=10, max_running=1)
    waits = queue.arrive(10, 1, deadline=50)
    hurries = queue.arrive(10, 1, deadline=5)
    idles = queue.arrive(10, 1, priority=BATCH)
    while len(queue):
        queue.step()
    assert queue.finished == [hurries, waits, idles]


def test_a_long_prompt_has_less_slack_than_a_short_one_with_the_same_deadline() -> None:
    asks = [
        Ask(i, 100 * i, 1, deadline=100) for i in range(1, 15)
    ]  # it learns step times from these
    asks += [Ask(29.9, 1900, 1), Ask(30.0, 100, 1, deadline=1.0), Ask(30.0, 1500, 1, deadline=1.0)]
    run = Run(Machine(places=1), LeastSlack(SloConfig())).play(asks)
    assert run.answered[-1].ttft < run.answered[-2].ttft


def test_those_that_are_late_have_a_share_and_the_oldest_goes_first() -> None:
    """An hour of others that can be in time would starve them otherwise."""
    asks = poisson(12, SECONDS, 1, (300, 900), (2, 4), deadline=2.0)
    late = [Ask(1.0 + i / 10, 1000, 2, tenant=1, deadline=0.001) for i in range(5)]
    run = Run(Machine(), LeastSlack(SloConfig())).play([*asks, *late], until=SECONDS)
    ends = run.ttfts(1)
    assert max(ends) < 20
    assert [at + i / 10 for i, at in enumerate(ends)] == sorted(
        at + i / 10 for i, at in enumerate(ends)
    )


def test_batch_work_gives_way_to_a_realtime_request_without_a_place() -> None:
    queue = slo_queue(max_batch_tokens=64, max_running=2)
    standard = queue.arrive(10, 300)
    queue.step()
    batch = queue.arrive(10, 100, priority=BATCH)
    queue.step()
    urgent = queue.arrive(10, 5, priority=REALTIME)
    assert urgent in granted(queue)
    assert batch in queue.waiting
    assert standard in queue.running
    while len(queue):
        queue.step()
    assert queue.finished == [urgent, batch, standard], "and it gets on afterwards"


def test_batch_work_gives_way_to_a_realtime_request_without_pages() -> None:
    queue = slo_queue(max_batch_tokens=64, max_running=8, num_pages=8)
    queue.arrive(60, 60, priority=BATCH)
    for _ in range(10):
        queue.step()
    urgent = queue.arrive(60, 20, priority=REALTIME)
    queue.step()
    queue.step()
    assert urgent in queue.running
    assert queue.preemptions == 1
    while len(queue):
        queue.step()
    assert queue.finished[0] is urgent


@pytest.mark.parametrize(
    ("victim", "newcomer", "config"),
    [
        (STANDARD, REALTIME, {}),
        (BATCH, STANDARD, {}),
        (BATCH, REALTIME, {"victims": 0}),
    ],
)
def test_nobody_else_gives_way(
    victim: Priority, newcomer: Priority, config: dict[str, bool]
) -> None:
    queue = slo_queue(SloConfig.model_validate(config), max_running=1)
    queue.arrive(10, 50, priority=victim)
    queue.step()
    queue.arrive(10, 5, priority=newcomer)
    for _ in range(20):
        queue.step()
    assert not queue.preemptions


def test_batch_work_with_a_deadline_does_not_give_way() -> None:
    queue = slo_queue(max_running=1)
    queue.arrive(10, 50, priority=BATCH, deadline=100)
    queue.step()
    queue.arrive(10, 5, priority=REALTIME)
    queue.step()
    assert not queue.preemptions


def test_batch_work_gives_way_three_times_and_then_goes_on() -> None:
    queue = slo_queue(max_batch_tokens=64, max_running=1)
    batch = queue.arrive(10, 200, priority=BATCH)
    for step in range(400):
        if step % 8 == 0:
            queue.arrive(10, 3, priority=REALTIME)
        queue.step()
        if batch in queue.finished:
            break
    assert batch in queue.finished
    assert queue.preemptions == 3


def test_the_pace_is_found_from_steps_of_different_sizes() -> None:
    step_time = StepTimeEstimate()
    for tokens in (64, 500, 130, 64, 320, 500, 64):
        step_time.record_step(tokens, 0.004 + 0.0002 * tokens)
    assert step_time.step_seconds == pytest.approx(0.004)
    assert step_time.token_seconds == pytest.approx(0.0002)


def test_steps_of_one_size_do_not_tell_what_a_token_takes() -> None:
    step_time = StepTimeEstimate()
    for _ in range(50):
        step_time.record_step(100, 0.02)
    assert step_time.step_seconds + 100 * step_time.token_seconds == pytest.approx(0.02)


def test_slots_come_and_go_in_any_order() -> None:
    slots, known = SlotSet(), set()
    draw = np.random.default_rng(1)
    for slot in draw.integers(0, 60, 2000).tolist():
        if slot in known:
            slots.remove(slot)
            known.discard(slot)
        else:
            slots.add(slot)
            slots.add(slot)
            known.add(slot)
        slots.remove(999)
        assert sorted(slots.all.tolist()) == sorted(known)
        assert all(slot in slots for slot in known)


def test_a_step_is_planned_within_two_milliseconds() -> None:
    """256 running and 10,000 waiting; it takes about a quarter of the bound."""
    num, waiting = 256, 10_000
    total = num + waiting
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
        uncached=lambda slot: 500,
    )
    scheduler = LeastSlack(SloConfig())
    scheduler.open(engine_resources())
    for slot in range(num, total):
        scheduler.enqueue(slot, view, front=False)
    times = []
    for _ in range(50):
        began = time.thread_time()
        scheduler.plan(view)
        times.append(time.thread_time() - began)
    assert min(times) < 2e-3
