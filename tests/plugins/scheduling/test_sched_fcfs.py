"""``fcfs``: properties beyond the kit's rules."""

from types import SimpleNamespace

import numpy as np
import pytest

from gatewayd_hooks.scheduling import QueueView
from gatewayd_hooks.testing.fakes import FakeQueue, engine_resources
from gatewayd_sched_fcfs.config import FcfsConfig
from gatewayd_sched_fcfs.strategy import Fcfs
from tests.complexity import best_seconds
from tests.plugins.scheduling.fake_queue import granted


def queue_of(chunk: int = 0, patience: float = 0.0, **sizes: int) -> FakeQueue:
    resources = engine_resources(**sizes)
    scheduler = Fcfs(FcfsConfig(max_prefill_chunk=chunk, prefix_patience=patience))
    scheduler.open(resources)
    return FakeQueue(scheduler, resources)


def test_arrivals_are_admitted_in_order_until_the_budget_is_used_up() -> None:
    queue = queue_of(max_batch_tokens=50)
    a, b, c = (queue.arrive(20, 5) for _ in range(3))
    d = queue.arrive(20, 5)
    assert granted(queue) == {a: 20, b: 20, c: 10}
    assert granted(queue) == {a: 1, b: 1, c: 10, d: 20}


def test_arrivals_are_admitted_until_all_places_are_taken() -> None:
    queue = queue_of(max_running=2)
    a, b, _ = (queue.arrive(5, 2) for _ in range(3))
    assert list(granted(queue)) == [a, b]
    assert list(granted(queue)) == [a, b]


def test_decodes_go_before_a_long_prompt_that_was_admitted_earlier() -> None:
    queue = queue_of(max_batch_tokens=16, max_running=4)
    short = queue.arrive(4, 50)
    queue.step()
    long = queue.arrive(100, 5)
    later = queue.arrive(3, 50, front=True)
    assert granted(queue) == {short: 1, later: 3, long: 12}
    for _ in range(5):
        assert granted(queue) == {short: 1, later: 1, long: 14}


def test_decodes_go_first_even_where_another_scheduler_admitted_prompts_before_them() -> None:
    queue = queue_of(chunk=8, max_batch_tokens=64)
    a, b = queue.arrive(100, 5), queue.arrive(100, 5)
    short = queue.arrive(4, 50)
    queue.step()
    queue.view.token_budget = 10
    assert granted(queue) == {short: 1, a: 8, b: 1}


def test_decodes_alone_may_use_up_the_budget_and_the_oldest_go_first() -> None:
    queue = queue_of(max_batch_tokens=2, max_running=4)
    a, b, c = (queue.arrive(1, 9) for _ in range(3))
    assert granted(queue) == {a: 1, b: 1}
    assert granted(queue) == {a: 1, b: 1}
    queue.cancel(a)
    assert granted(queue) == {b: 1, c: 1}


def test_one_prompt_computes_at_most_a_chunk_per_step() -> None:
    queue = queue_of(chunk=10, max_batch_tokens=32)
    a, b = queue.arrive(25, 2), queue.arrive(25, 2)
    assert granted(queue) == {a: 10, b: 10}
    c = queue.arrive(4, 2)
    assert granted(queue) == {a: 10, b: 10, c: 4}
    assert granted(queue) == {c: 1, a: 5, b: 5}


def test_the_preempted_go_before_all_others_in_order_of_arrival() -> None:
    queue = queue_of(max_running=3)
    a, b, c = (queue.arrive(5, 9) for _ in range(3))
    queue.step()
    waiting = queue.arrive(5, 9)
    for sequence in (a, c, b):
        queue.preempt(sequence)
    assert list(granted(queue)) == [a, b, c]
    queue.cancel(b)
    assert waiting in granted(queue)


def test_nobody_overtakes_a_sequence_that_finds_no_pages() -> None:
    queue = queue_of(num_pages=10, page_size=16, max_batch_tokens=160)
    running = queue.arrive(60, 30)
    queue.step()
    large = queue.arrive(140, 2)
    small = queue.arrive(2, 2)
    assert small not in granted(queue)
    queue.cancel(running)
    assert next(iter(granted(queue))) is large


def test_cached_tokens_leave_budget_for_others() -> None:
    queue = queue_of(max_batch_tokens=40)
    a, b = queue.arrive(100, 2, cached=80), queue.arrive(20, 2)
    assert granted(queue) == {a: 20, b: 20}


def planning(num: int, waiting: int) -> tuple[float, int]:
    """Seconds to plan a step with so many that run and wait, and how many prefixes it looks up."""
    asked: list[int] = []

    def uncached(slot: int) -> int:
        asked.append(slot)
        return 500

    view = QueueView(
        running=np.arange(num, dtype=np.int32),
        num_tokens=np.full(num + waiting, 500, np.int32),
        num_computed=np.full(num + waiting, 499, np.int32),
        priority=np.ones(num + waiting, np.int8),
        tenant=np.zeros(num + waiting, np.int32),
        arrival=np.arange(num + waiting, dtype=np.float64),
        token_budget=2048,
        max_running=num + 4,
        free_pages=10**6,
        page_size=16,
        uncached=uncached,
    )
    view.num_computed[num - num // 4 : num] = 0
    scheduler = Fcfs(FcfsConfig())
    scheduler.open(engine_resources(max_batch_tokens=2048))
    for slot in range(num, num + waiting):
        scheduler.enqueue(slot, view, front=False)
    return best_seconds(lambda: scheduler.plan(view), tries=50), len(asked)


def test_a_step_is_planned_in_a_fraction_of_a_millisecond() -> None:
    """256 running and 10,000 waiting: 25 us."""
    seconds, asked = planning(256, 10_000)
    assert seconds < 250e-6
    assert asked <= 4 * 50


def test_a_step_is_planned_in_a_time_that_does_not_grow_with_the_queue() -> None:
    assert planning(256, 16_000)[0] < 3 * planning(256, 1000)[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A time that stands still; sequences of a fake queue arrive at 1, 2, 3 and so on."""
    now = SimpleNamespace(seconds=0.0)
    now.monotonic = lambda: now.seconds
    monkeypatch.setattr("gatewayd_sched_fcfs.strategy.time", now)
    return now


def test_with_patience_the_longest_cached_prefix_goes_first(clock: SimpleNamespace) -> None:
    queue = queue_of(patience=100, max_running=3)
    a, b, c, d = (queue.arrive(60, 3, cached=cached) for cached in (0, 20, 40, 20))
    clock.seconds = queue.view.arrival.max()
    assert list(granted(queue)) == [c, b, d]
    assert queue.waiting == [a]


def test_without_patience_they_go_in_order(clock: SimpleNamespace) -> None:
    queue = queue_of(max_running=2)
    a, b, _ = (queue.arrive(60, 3, cached=cached) for cached in (0, 20, 40))
    assert list(granted(queue)) == [a, b]


def test_whoever_has_waited_long_enough_is_overtaken_no_more(clock: SimpleNamespace) -> None:
    queue = queue_of(patience=100, max_running=2)
    a, b, c = (queue.arrive(60, 3, cached=cached) for cached in (0, 20, 40))
    arrived = [queue.view.arrival[s.slot] for s in (a, b, c)]
    assert arrived == sorted(arrived)
    queue.view.arrival[c.slot] += 50
    clock.seconds = arrived[1] + 100
    assert list(granted(queue)) == [a, b]


def test_whoever_came_back_is_overtaken_by_nobody(clock: SimpleNamespace) -> None:
    queue = queue_of(patience=100, max_running=2)
    queue.arrive(60, 3)
    c = queue.arrive(60, 3, cached=40)
    back = queue.arrive(60, 3, front=True)
    clock.seconds = queue.view.arrival.max()
    assert list(granted(queue)) == [back, c]


def test_a_flood_of_cached_prompts_does_not_starve_one_that_is_not(
    clock: SimpleNamespace,
) -> None:
    queue = queue_of(patience=20, max_running=2, max_batch_tokens=64)
    first = queue.arrive(60, 1)
    for _ in range(60):
        queue.arrive(60, 1, cached=59)
        queue.arrive(60, 1, cached=59)
        clock.seconds = queue.view.arrival.max()
        queue.step()
        if first in queue.finished:
            break
    assert first in queue.finished
    assert len(queue.finished) > 10


def test_those_behind_the_window_are_admitted_too(clock: SimpleNamespace) -> None:
    queue = queue_of(patience=1000, max_running=200, max_batch_tokens=4096, num_pages=200)
    for _ in range(100):
        queue.arrive(4, 2)
    clock.seconds = queue.view.arrival.max()
    assert len(granted(queue)) == 100
