"""Tenants get the same, whoever asks for more, and nobody saves up a claim."""

from collections import defaultdict

import pytest
from gatewayd_hooks.scheduling import SchedulerStrategy
from gatewayd_hooks.testing.fakes import FakeQueue, FakeSequence, engine_resources

from gatewayd_sched_fairshare.config import FairshareSettings
from gatewayd_sched_fairshare.strategy import FairshareScheduler

PROMPT, OUTPUT, COST = 40, 10, 2.0
MAX_RUNNING = 4


class Tenants:
    """A queue that counts what each tenant's tokens cost."""

    def __init__(self, scheduler: SchedulerStrategy) -> None:
        self.queue = FakeQueue(
            scheduler, engine_resources(max_running=MAX_RUNNING, max_batch_tokens=64)
        )
        self.had: defaultdict[int, float] = defaultdict(float)
        self._sequences: list[tuple[FakeSequence, int]] = []

    def ask(self, tenant: int, times: int, prompt: int = PROMPT) -> None:
        """So many requests come."""
        for _ in range(times):
            self._sequences.append((self.queue.arrive(prompt, OUTPUT, tenant=tenant), tenant))

    def step(self) -> None:
        """One step, as an engine does it; its tokens are counted."""
        view = self.queue.view
        needs = [int((view.num_tokens - view.num_computed)[s.slot]) for s, _ in self._sequences]
        before = [(s.computed, s.is_running) for s, _ in self._sequences]
        self.queue.step()
        for i, (sequence, tenant) in enumerate(self._sequences):
            computed, was_running = before[i]
            is_decode = was_running and needs[i] == 1
            count = sequence.computed - computed
            self.had[tenant] += count * (COST if is_decode else 1)
        self._sequences = [(s, t) for s, t in self._sequences if s.slot >= 0]


def tenants() -> Tenants:
    """The scheduler under test."""
    return Tenants(FairshareScheduler(FairshareSettings(output_cost=COST)))


# Twice what one tenant may have been promised at once (theorem 4.4 of the paper).
BOUND = 2 * max(PROMPT, COST * MAX_RUNNING * OUTPUT)


def test_one_who_floods_gets_no_more_than_one_who_does_not() -> None:
    world = tenants()
    world.ask(0, 60)
    world.ask(1, 12)
    for _ in range(60):
        world.step()
        assert abs(world.had[0] - world.had[1]) <= BOUND
    assert world.had[1] > 300


def test_places_that_are_free_at_once_are_shared_too() -> None:
    world = tenants()
    world.ask(0, 4, prompt=8)
    world.ask(1, 4, prompt=8)
    world.step()
    view = world.queue.view
    assert sorted(view.tenant[view.running].tolist()) == [0, 0, 1, 1]


def test_prompts_count_by_their_length_not_their_number() -> None:
    world = tenants()
    world.ask(0, 40, prompt=200)
    world.ask(1, 200, prompt=20)
    for _ in range(80):
        world.step()
    assert world.had[0] == pytest.approx(world.had[1], abs=2 * max(200, BOUND))


def test_who_was_away_has_saved_up_nothing() -> None:
    world = tenants()
    world.ask(0, 120)
    for _ in range(60):
        world.step()
    alone = world.had[0]
    assert alone > 4 * BOUND
    world.ask(1, 60)
    for _ in range(60):
        world.step()
    assert abs((world.had[0] - alone) - world.had[1]) <= BOUND


def test_who_gives_up_waiting_pays_nothing() -> None:
    scheduler = FairshareScheduler(FairshareSettings())
    queue = FakeQueue(scheduler, engine_resources(num_pages=11))
    queue.arrive(160, 2, tenant=0)
    queue.step()
    quitters = [queue.arrive(30, 2, tenant=1) for _ in range(5)]
    assert len(queue.step().slots) > len(queue.running), "granted, without the pages"
    for sequence in quitters:
        queue.cancel(sequence)
    assert scheduler._time[1] == scheduler._now
