"""Conformance tests of schedulers, for any policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hypothesis import example, given

from gatewayd_hooks.scheduling import SchedulerStrategy
from gatewayd_hooks.testing.fakes import FakeQueue, engine_resources
from gatewayd_hooks.testing.samples.campaign import campaign, storms
from gatewayd_hooks.testing.simulation.queue_events import (
    EVENTS,
    SIZES,
    STORMS,
    TIGHT,
    Arrival,
    Event,
    Steps,
    happen,
)

_CROWD = [*[Arrival(8, 2, 1, 0, 0, front=False)] * 6, Steps(1)]
# Later requests are of other tenants and better classes, and find no pages while the first runs.
_FIND_NO_PAGES = [
    Arrival(130, 2, 2, 0, 0, front=False),
    Steps(2),
    Arrival(100, 2, 1, 1, 0, front=False),
    Arrival(90, 2, 0, 2, 0, front=False),
]


class SchedulerConformance:
    """Subclass it and build your scheduler in ``make``."""

    def make(self) -> SchedulerStrategy:
        """Build the scheduler; the tests open and close it."""
        raise NotImplementedError("return your scheduler, built and not opened")

    @contextmanager
    def queue(self, **sizes: int) -> Iterator[FakeQueue]:
        """Yield a fake queue over an opened scheduler."""
        resources = engine_resources(**sizes)
        scheduler = self.make()
        try:
            scheduler.open(resources)
            yield FakeQueue(scheduler, resources)
        finally:
            scheduler.close()

    def play(self, sizes: dict[str, int], events: Sequence[Event]) -> list[Any]:
        """Apply events, then serve all remaining sequences; return the plans of all steps."""
        plans: list[Any] = []
        with self.queue(**sizes) as queue:

            def step() -> None:
                plan = queue.step()
                assert queue.idle_steps < 2, (
                    "two consecutive steps make no progress while sequences run: let these go "
                    "first when waiting ones find no pages"
                )
                preempted = [] if plan.preempt is None else plan.preempt.tolist()
                plans.append((plan.slots.tolist(), plan.tokens.tolist(), preempted))

            for event in events:
                if isinstance(event, Steps):
                    for _ in range(event.count if len(queue) else 0):
                        step()
                else:
                    happen(queue, event)
            for sequence in list(queue.parked):
                queue.unpark(sequence)
            # Pages may run short and work may be repeated, but not forever.
            for _ in range(100 + 200 * len(queue)):
                if not len(queue):
                    break
                step()
            assert not len(queue), f"{len(queue)} sequences are never served"
        return plans

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    @campaign
    @given(sizes=SIZES, events=EVENTS)
    def test_every_plan_is_valid_and_every_sequence_is_served(
        self, sizes: dict[str, int], events: Sequence[Event]
    ) -> None:
        self.play(sizes, events)

    @storms
    @given(sizes=TIGHT, events=STORMS)
    @example({"max_batch_tokens": 16, "max_running": 4, "num_pages": 12}, _FIND_NO_PAGES)
    def test_some_sequence_progresses_even_with_few_pages(
        self, sizes: dict[str, int], events: Sequence[Event]
    ) -> None:
        self.play(sizes, events)

    @campaign
    @given(sizes=SIZES, events=EVENTS)
    @example({"max_batch_tokens": 64, "max_running": 6, "num_pages": 40}, _CROWD)
    def test_the_same_events_give_the_same_plans(
        self, sizes: dict[str, int], events: Sequence[Event]
    ) -> None:
        assert self.play(sizes, events) == self.play(sizes, events)

    def test_a_prompt_longer_than_the_budget_is_computed_in_chunks(self) -> None:
        with self.queue(max_batch_tokens=16) as queue:
            sequence = queue.arrive(100, 3)
            for _ in range(200):
                if not len(queue):
                    break
                queue.step()
            assert queue.finished == [sequence]
            assert sequence.computed == 102, "each token is computed once; the last one never"

    def test_a_removed_sequence_is_never_planned_again(self) -> None:
        with self.queue(max_running=2) as queue:
            gone = [queue.arrive(20, 4) for _ in range(4)]
            kept = [queue.arrive(20, 4) for _ in range(4)]
            queue.step()
            for sequence in gone:
                queue.cancel(sequence)
            for _ in range(200):
                if not len(queue):
                    break
                queue.step()
            assert set(map(id, queue.finished)) == set(map(id, kept))

    def test_a_sequence_moved_to_the_front_is_served_first_in_its_class(self) -> None:
        for priority in (0, 1, 2):
            with self.queue(max_running=1) as queue:
                queue.arrive(8, 3, priority=priority)
                queue.step()
                waiting = [queue.arrive(8, 2, priority=priority) for _ in range(4)]
                queue.bump(waiting[2], None)
                for _ in range(200):
                    if not len(queue):
                        break
                    queue.step()
                assert queue.finished[1] is waiting[2]

    def test_a_held_sequence_is_not_planned_until_it_is_released(self) -> None:
        with self.queue(max_running=2) as queue:
            held = [queue.arrive(20, 4) for _ in range(3)]
            queue.step()
            for sequence in held:
                queue.park(sequence)
            others = [queue.arrive(20, 4) for _ in range(3)]
            for _ in range(100):
                if not len(queue):
                    break
                queue.step()
            assert set(map(id, queue.finished)) == set(map(id, others))
            for sequence in held:
                queue.unpark(sequence)
            for _ in range(100):
                if not len(queue):
                    break
                queue.step()
            assert len(queue.finished) == 6

    def test_a_reused_slot_is_a_new_sequence(self) -> None:
        with self.queue(max_running=1) as queue:
            queue.cancel(queue.arrive(90, 9, priority=2))
            short = queue.arrive(1, 1, priority=0)
            for _ in range(50):
                if not len(queue):
                    break
                queue.step()
            assert queue.finished == [short]

    def test_removing_an_unknown_sequence_is_ignored(self) -> None:
        scheduler = self.make()
        scheduler.open(engine_resources())
        scheduler.dequeue(3)
        scheduler.dequeue(3)
        scheduler.close()

    def test_tokens_of_a_cached_prefix_are_not_planned(self) -> None:
        with self.queue(max_batch_tokens=64) as queue:
            queue.arrive(60, 2, cached=48)
            granted = 0
            for _ in range(50):
                if queue.running:
                    break
                granted = int(queue.step().tokens.sum())
            assert granted <= 12, "only the uncached tokens are needed"

    def test_deferred_sequences_leave_the_token_budget_to_others(self) -> None:
        with self.queue(max_batch_tokens=16, max_running=2) as queue:
            held = [queue.arrive(40, 2) for _ in range(3)]
            for sequence in held:
                queue.hold(sequence, 30)
            others = [queue.arrive(16, 2) for _ in range(4)]
            for _ in range(30):
                if len(queue) == len(held):
                    break
                plan = queue.step()
                granted = set(plan.slots.tolist())
                assert granted.isdisjoint(s.slot for s in held), "held: granted nothing"
            assert set(map(id, queue.finished)) == set(map(id, others))
            for sequence in held:
                queue.hold(sequence, 0)
            for _ in range(200):
                if not len(queue):
                    break
                queue.step()
            assert len(queue.finished) == len(held) + len(others), "they keep their position"
