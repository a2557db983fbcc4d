"""Queues and load of the ``priority`` scheduler's classes, for tests."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gatewayd_hooks.scheduling import Priority
from gatewayd_hooks.testing.fakes import FakeQueue, FakeSequence, engine_resources
from gatewayd_sched_priority.config import PriorityConfig
from gatewayd_sched_priority.strategy import WeightedClasses

REALTIME, STANDARD, BATCH = Priority


def queue_of(config: PriorityConfig | None = None, **sizes: int) -> FakeQueue:
    resources = engine_resources(**{"num_pages": 10**6, **sizes})
    scheduler = WeightedClasses(config or PriorityConfig())
    scheduler.open(resources)
    return FakeQueue(scheduler, resources)


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
