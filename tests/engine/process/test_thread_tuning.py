"""Thread tuning: on idle, busy and changing machines."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gatewayd_engine.process.thread_tuning import ThreadTuning

Cost = Callable[[int, int], float]


class Machine:
    """Runs steps on a clock of its own."""

    def __init__(self, threads: int) -> None:
        self.now = 0.0
        self.threads = 0
        self.pace = ThreadTuning(threads, self.use, lambda: self.now)

    def use(self, threads: int) -> None:
        self.threads = threads

    def run(self, steps: int, num_tokens: int, cost: Cost) -> float:
        """Time taken."""
        began = self.now
        for _ in range(steps):
            self.pace.start_step(num_tokens)
            self.now += cost(num_tokens, self.threads)
            self.pace.end_step()
        return self.now - began


def idle(num_tokens: int, threads: int) -> float:
    return num_tokens / threads


def busy(num_tokens: int, threads: int) -> float:
    return num_tokens * (1.2 if threads == 1 else 5.0)


@pytest.mark.parametrize("cost", [idle, busy])
def test_it_costs_little_more_than_knowing(cost: Cost) -> None:
    machine = Machine(2)
    taken = machine.run(2000, 32, cost)
    assert taken < 1.04 * 2000 * min(cost(32, 1), cost(32, 2))


def test_it_follows_a_machine_that_becomes_busy_and_idle_again() -> None:
    machine = Machine(2)
    machine.run(500, 32, idle)
    assert machine.threads == 2
    lost = machine.run(100, 32, busy) - 100 * busy(32, 1)
    assert machine.threads == 1
    assert lost < 21 * busy(32, 2)
    machine.run(600, 32, idle)
    assert machine.run(200, 32, idle) < 1.05 * 200 * idle(32, 2)


def test_a_hiccup_changes_nothing() -> None:
    machine = Machine(2)
    machine.run(300, 32, idle)
    steps = iter(range(10_000))

    def hiccups(num_tokens: int, threads: int) -> float:
        return idle(num_tokens, threads) * (30 if next(steps) % 40 == 0 else 1)

    used = []
    for _ in range(400):
        machine.run(1, 32, hiccups)
        used.append(machine.threads)
    assert used.count(2) > 0.95 * len(used)


@pytest.mark.parametrize("often", [0.01, 0.03, 0.06, 0.1])
def test_slow_steps_in_a_row_cost_little_more_than_themselves(often: float) -> None:
    """As when the daemon writes a snapshot: a core is away for some steps, four times a second."""
    rng = random.Random(4)
    slow: list[float] = []
    while len(slow) < 20_000:
        length = rng.randint(1, 3) if rng.random() < often else 0
        slow += [rng.uniform(1.6, 3.5) for _ in range(length)] or [rng.uniform(0.95, 1.08)]
    steps = iter(slow)

    def bursts(num_tokens: int, threads: int) -> float:
        factor = next(steps)
        return num_tokens * (factor if threads == 2 else 1.4 * min(factor, 1.2))

    taken = Machine(2).run(20_000, 16, bursts)
    assert taken < 1.025 * sum(slow[:20_000]) * 16


class TakenCore:
    """Two cores, of which another process takes one for four milliseconds out of eight.

    A thread that loses its core holds a part of the step until it is back, and the other waits.
    """

    def __init__(self, machine: Machine, two: float) -> None:
        self.machine = machine
        self.two = two

    def __call__(self, num_tokens: int, threads: int) -> float:
        if threads == 1:
            return 0.001
        at = self.machine.now % 0.008
        end = at + self.two
        return self.two if end < 0.004 else 0.008 + max(0.0, end - 0.008) - at


@pytest.mark.parametrize("two", [0.0006, 0.0008])
def test_a_core_that_comes_and_goes_is_judged_by_means(two: float) -> None:
    """Of two threads most steps are faster, and some take so long that the mean is not."""
    machine = Machine(2)

    def alone(num_tokens: int, threads: int) -> float:
        return 0.001 if threads == 1 else two

    def share_of_two(steps: int, cost: Cost) -> float:
        used = 0
        for _ in range(steps):
            machine.run(1, 1, cost)
            used += machine.threads == 2
        return used / steps

    assert share_of_two(1000, alone) > 0.85
    taken = TakenCore(machine, two)
    machine.run(400, 1, taken)
    began = machine.now
    assert share_of_two(4000, taken) < 0.15
    assert machine.now - began < 1.03 * 0.001 * 4000
    # Alone again.
    machine.run(600, 1, alone)
    assert share_of_two(1000, alone) > 0.85


def test_who_has_just_lost_is_tried_again_soon() -> None:
    machine = Machine(2)
    machine.run(2600, 32, idle)  # one thread is hardly tried any more
    machine.run(40, 32, busy)
    assert machine.threads == 1
    machine.run(40, 32, idle)
    assert machine.run(50, 32, idle) < 1.1 * 50 * idle(32, 2)


def test_sizes_are_judged_apart() -> None:
    def overhead(num_tokens: int, threads: int) -> float:
        return num_tokens / threads + (20 if threads > 1 else 0)

    machine = Machine(4)
    machine.run(200, 1, overhead)
    machine.run(200, 100, overhead)
    machine.run(4, 1, overhead)
    assert machine.threads == 1
    machine.run(4, 100, overhead)
    assert machine.threads == 4


def test_a_large_step_is_not_tried_but_runs_as_the_one_before() -> None:
    machine = Machine(2)
    machine.run(1, 2000, idle)
    assert machine.threads == 2
    machine.run(300, 32, busy)
    machine.run(1, 2000, idle)
    assert machine.threads == 1


def test_one_thread_leaves_nothing_to_choose() -> None:
    machine = Machine(1)
    machine.run(100, 8, busy)
    assert machine.threads == 1
