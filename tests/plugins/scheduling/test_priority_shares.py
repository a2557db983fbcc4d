"""``priority`` shares: proportional to weights, no credit for idling."""

import pytest

from gatewayd_hooks.scheduling import Priority
from gatewayd_sched_priority.config import PriorityConfig
from tests.plugins.scheduling.fake_queue import granted
from tests.plugins.scheduling.priority_classes import (
    BATCH,
    REALTIME,
    STANDARD,
    TEN_FIVE_ONE,
    Load,
    queue_of,
)


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


def test_those_who_turn_out_to_wait_are_no_sign_that_pages_lack() -> None:
    """Each step two come that begin alike: the engine holds the second, and all get their share."""
    queue = queue_of(max_batch_tokens=66, num_pages=1000, max_running=32)
    batch = queue.arrive(10_000, 2, priority=BATCH)
    queue.step()
    came, before = [], batch.computed
    for _ in range(30):
        came += [queue.arrive(30, 1, priority=REALTIME) for _ in range(2)]
        queue.hold(came[-1], 1, is_shown=False)
        queue.step()
    # Weights are 10 to 1: what is left is 6 of 66 tokens, but for the first step's.
    assert batch.computed - before <= 30 * 6 + 30
    assert len([s for s in came if s in queue.finished]) >= 2 * 29


def test_those_who_find_no_pages_let_others_go_on_first() -> None:
    queue = queue_of(max_batch_tokens=64, num_pages=64, max_running=8)
    batch = queue.arrive(800, 2, priority=BATCH)
    queue.step()
    large = queue.arrive(600, 2, priority=REALTIME)
    queue.step()
    assert queue.view.unplaced == {large.slot}
    assert granted(queue)[batch] == 64
