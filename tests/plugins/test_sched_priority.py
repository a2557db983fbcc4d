"""What ``priority`` promises beyond the rules of every scheduler: shares, and nothing idle."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from gatewayd_hooks.scheduling import Priority, QueueView
from gatewayd_hooks.testing.fakes import FakeQueue, FakeSequence, engine_resources
from gatewayd_sched_priority.config import PriorityConfig
from gatewayd_sched_priority.strategy import WeightedClasses

REALTIME, STANDARD, BATCH = Priority


def queue_of(config: PriorityConfig | None = None, **sizes: int) -> FakeQueue:
    resources = engine_resources(**{"num_pages": 10**6, **sizes})
    scheduler = WeightedClasses(config or PriorityConfig())
    scheduler.open(resources)
    return FakeQueue(scheduler, resources)


def granted(queue: FakeQueue) -> dict[FakeSequence, int]:
    """Tokens of the next step, in the order of the plan."""
    live = {sequence.slot: sequence for sequence in queue.running + queue.waiting}
    plan = queue.step()
    return {
        live[slot]: count
        for slot, count in zip(plan.slots.tolist(), plan.tokens.tolist(), strict=True)
    }


@dataclass
class Load:
    """Keeps some sequences of each class waiting, and counts what is computed."""

    queue: FakeQueue
    prompt: tuple[int, int]
    output: tuple[int, int]
    depth: int
    classes: Sequence[int] = tuple(Priority)

    def __post_init__(self) -> None:
        self._draw = random.Random(7)
        self._seen: list[FakeSequence] = []
        self.tokens = [0, 0, 0]
        self.full_steps = self.steps = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            waiting = [sequence.priority for sequence in self.queue.waiting]
            for number in self.classes:
                for _ in range(self.depth - waiting.count(number)):
                    prompt = self._draw.randint(*self.prompt)
                    self.queue.arrive(prompt, self._draw.randint(*self.output), priority=number)
            live = self.queue.running + self.queue.waiting
            before = [sequence.computed for sequence in live]
            plan = self.queue.step()
            for sequence, computed in zip(live, before, strict=True):
                self.tokens[sequence.priority] += sequence.computed - computed
            self.steps += 1
            self.full_steps += int(plan.tokens.sum()) == self.queue.view.token_budget

    def shares(self) -> list[float]:
        return [count / sum(self.tokens) for count in self.tokens]


TEN_FIVE_ONE = [10 / 16, 5 / 16, 1 / 16]


def test_shares_are_as_the_weights_where_the_token_budget_binds() -> None:
    load = Load(queue_of(max_batch_tokens=32, max_running=64), (1, 200), (1, 100), depth=8)
    load.run(3000)
    assert load.full_steps == load.steps
    assert load.shares() == pytest.approx(TEN_FIVE_ONE, rel=0.02)


@pytest.mark.parametrize(
    ("places", "prompt", "output", "steps"),
    [
        (16, (1, 100), (1, 60), 6000),
        # All end together and all places fall free at once, again and again.
        (16, (10, 10), (80, 80), 6000),
        # Fewer places than it takes to give each class its share at any one time.
        (3, (1, 30), (1, 30), 12000),
    ],
)
def test_shares_are_as_the_weights_where_places_bind(
    places: int, prompt: tuple[int, int], output: tuple[int, int], steps: int
) -> None:
    queue = queue_of(max_batch_tokens=4096, max_running=places)
    load = Load(queue, prompt, output, depth=20)
    load.run(steps)
    assert load.full_steps == 0
    assert load.shares() == pytest.approx(TEN_FIVE_ONE, rel=0.02)


def test_shares_are_as_the_weights_where_pages_bind() -> None:
    queue = queue_of(max_batch_tokens=512, max_running=64, num_pages=120)
    load = Load(queue, (1, 100), (1, 60), depth=8)
    load.run(4000)
    assert queue.preemptions > 100
    assert load.shares() == pytest.approx(TEN_FIVE_ONE, rel=0.02)


def test_clients_that_leave_while_they_wait_cost_their_class_nothing() -> None:
    queue = queue_of(max_batch_tokens=512, max_running=64, num_pages=120)
    load = Load(queue, (1, 100), (1, 60), depth=8)
    for _ in range(4000):
        load.run(1)
        # Those that were granted tokens and found no pages are among them.
        for sequence in queue.waiting[:]:
            if sequence.priority == REALTIME and sequence.computed == 0:
                queue.cancel(sequence)
    assert load.shares() == pytest.approx(TEN_FIVE_ONE, rel=0.02)


def test_weights_are_settings() -> None:
    config = PriorityConfig(realtime=1, standard=2, batch=5)
    load = Load(queue_of(config, max_batch_tokens=24), (1, 60), (1, 20), depth=8)
    load.run(3000)
    assert load.shares() == pytest.approx([1 / 8, 2 / 8, 5 / 8], rel=0.02)


def test_what_one_class_leaves_the_others_share_by_weight() -> None:
    queue = queue_of(max_batch_tokens=32, max_running=64)
    load = Load(queue, (1, 100), (1, 50), depth=8, classes=(REALTIME, BATCH))
    load.run(3000)
    assert load.full_steps == load.steps
    assert load.shares() == pytest.approx([10 / 11, 0, 1 / 11], rel=0.02)


def test_a_class_alone_gets_everything() -> None:
    queue = queue_of(max_batch_tokens=32, max_running=64)
    load = Load(queue, (1, 100), (1, 50), depth=8, classes=(BATCH,))
    load.run(200)
    assert load.full_steps == load.steps


@pytest.mark.parametrize("sizes", [{"max_batch_tokens": 16}, {"max_running": 4}])
def test_a_class_that_was_idle_has_no_credit_and_no_debt(sizes: dict[str, int]) -> None:
    queue = queue_of(None, **sizes)
    load = Load(queue, (1, 40), (1, 20), depth=8, classes=(STANDARD, BATCH))
    load.run(3000)
    load.tokens = [0, 0, 0]
    load.classes = (REALTIME, STANDARD, BATCH)
    load.run(600)
    # Far from exact after so short a time, but 3000 steps of credit would be all of it.
    assert load.shares() == pytest.approx(TEN_FIVE_ONE, abs=0.1)


def test_a_class_that_always_got_what_it_wanted_has_no_credit() -> None:
    """One stream of realtime for a long time, beside as much of batch as there is room for."""
    queue = queue_of(max_batch_tokens=32, max_running=64)
    load = Load(queue, (1, 60), (1, 40), depth=8, classes=(BATCH,))
    stream = queue.arrive(1, 10**6, priority=REALTIME)
    load.run(2000)
    assert stream.computed >= 1999
    load.tokens = [0, 0, 0]
    load.classes = (REALTIME, BATCH)
    load.run(100)
    assert load.shares() == pytest.approx([10 / 11, 0, 1 / 11], rel=0.1)


def test_when_nobody_wanted_more_all_start_level() -> None:
    queue = queue_of(max_batch_tokens=16, max_running=8)
    Load(queue, (1, 60), (1, 40), depth=8, classes=(BATCH,)).run(500)
    while len(queue):
        queue.step()
    load = Load(queue, (1, 60), (1, 40), depth=8)
    load.run(300)
    assert load.shares() == pytest.approx(TEN_FIVE_ONE, abs=0.04)


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
        began = time.perf_counter()
        scheduler.plan(view)
        times.append(time.perf_counter() - began)
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


def test_a_class_that_is_held_saves_up_nothing() -> None:
    queue = queue_of(max_batch_tokens=90, num_pages=1000, max_running=4)
    standard = [queue.arrive(8000, 2, priority=Priority.STANDARD) for _ in range(2)]
    held = queue.arrive(8000, 2, priority=Priority.REALTIME)
    queue.hold(held, 50)
    for _ in range(50):
        assert held not in granted(queue)
    # Weights are 10 to 5: it gets its share from now on, and no more.
    for _ in range(3):
        tokens = granted(queue)
        assert tokens[held] == 60
        assert sum(tokens.get(sequence, 0) for sequence in standard) == 30
