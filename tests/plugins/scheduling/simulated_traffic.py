"""Open-loop traffic for a scheduler, with known step times and no model.

The scheduler is the real one, the engine's rules are ``FakeQueue``'s, and the clock only moves by
what steps are said to take, so every run of the same traffic gives the same figures.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gatewayd_hooks.scheduling import SchedulerStrategy
from gatewayd_hooks.testing.fakes import FakeQueue, FakeSequence, engine_resources


@dataclass(frozen=True, slots=True)
class Machine:
    """How long a step takes, and what fits.

    Attributes:
        step_seconds: of any step.
        token_seconds: of each token in it.
        budget: tokens of a step.
        places: sequences in the batch.
        context: tokens of the longest sequence.
        pages: of the KV pool.
    """

    step_seconds: float = 0.005
    token_seconds: float = 0.0001
    budget: int = 512
    places: int = 64
    context: int = 2048
    pages: int = 10**6

    def queue(
        self, scheduler: SchedulerStrategy, clock: Callable[[], float] | None = None
    ) -> FakeQueue:
        """An empty queue of an opened scheduler."""
        resources = engine_resources(
            max_batch_tokens=self.budget,
            max_running=self.places,
            max_model_len=self.context,
            num_pages=self.pages,
        )
        scheduler.open(resources)
        return FakeQueue(scheduler, resources, clock)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that will come.

    Attributes:
        at: seconds.
        prompt: tokens.
        output: tokens.
        tenant: its number.
        priority: its class.
        deadline: seconds from ``at`` to the first token that is wanted.
        weight: of its tenant.
    """

    at: float
    prompt: int
    output: int
    tenant: int = 0
    priority: int = 1
    deadline: float = float("inf")
    weight: float = 1.0


def poisson(
    rate: float, seconds: float, seed: int, prompt: tuple[int, int], output: tuple[int, int],
    **rest: Any,
) -> list[Ask]:  # fmt: skip
    """Requests of one tenant that come independently of one another."""
    draw = random.Random(seed)
    asks, at = [], draw.expovariate(rate)
    while at < seconds:
        asks.append(Ask(at, draw.randint(*prompt), draw.randint(*output), **rest))
        at += draw.expovariate(rate)
    return asks


@dataclass(slots=True)
class Answered:
    """What became of a request.

    Attributes:
        ask: it.
        ttft: seconds to its first token; infinite if it got none.
        seconds: to its end.
        forecast: seconds to the first token that were promised, if any.
    """

    ask: Ask
    ttft: float = float("inf")
    seconds: float = float("inf")
    forecast: float | None = None

    @property
    def is_in_time(self) -> bool:
        """Whether the first token came when it was wanted."""
        return self.ttft <= self.ask.deadline


@dataclass
class Run:
    """One simulation.

    Attributes:
        answered: in order of arrival, those that were not refused.
        refused: those that were.
        now: the clock.
        preemptions: how often a sequence had to wait again.
    """

    machine: Machine
    scheduler: SchedulerStrategy
    admit: Callable[[Ask, FakeQueue], bool] | None = None
    began: Callable[[Answered], None] | None = None
    answered: list[Answered] = field(default_factory=list)
    refused: list[Ask] = field(default_factory=list)
    now: float = 0.0
    _by_slot: dict[int, FakeSequence] = field(default_factory=dict)

    def play(self, asks: Iterable[Ask], *, until: float = float("inf")) -> Run:
        """Let requests come; ends when all are answered, or at a time."""
        coming = sorted(asks, key=lambda ask: ask.at)[::-1]
        queue = self.machine.queue(self.scheduler, lambda: self.now)
        self.queue = queue
        live: dict[FakeSequence, Answered] = {}
        while (coming or len(queue)) and self.now < until:
            if not len(queue) and coming:
                self.now = max(self.now, coming[-1].at)
            while coming and coming[-1].at <= self.now:
                self._come(coming.pop(), live)
            if not len(queue):
                continue
            plan = queue.step()
            self.now += self.machine.step_seconds
            self.now += self.machine.token_seconds * int(plan.tokens.sum())
            for slot in plan.slots.tolist():
                self._note(self._by_slot[slot], live)
        return self

    def _come(self, ask: Ask, live: dict[FakeSequence, Answered]) -> None:
        if self.admit is not None and not self.admit(ask, self.queue):
            self.refused.append(ask)
            return
        sequence = self.queue.arrive(
            ask.prompt,
            ask.output,
            priority=ask.priority,
            tenant=ask.tenant,
            weight=ask.weight,
            deadline=ask.deadline - (self.now - ask.at),
        )
        live[sequence] = Answered(ask)
        self._by_slot[sequence.slot] = sequence
        self.answered.append(live[sequence])

    def _note(self, sequence: FakeSequence, live: dict[FakeSequence, Answered]) -> None:
        answered = live[sequence]
        has_ended = sequence.slot < 0
        num_tokens = sequence.length if has_ended else self.queue.view.num_tokens[sequence.slot]
        if num_tokens > answered.ask.prompt and answered.ttft == float("inf"):
            answered.ttft = self.now - answered.ask.at
            if self.began is not None:
                self.began(answered)
        if has_ended:
            answered.seconds = self.now - answered.ask.at
            del live[sequence]

    @property
    def preemptions(self) -> int:
        """How often a sequence had to wait again."""
        return self.queue.preemptions

    def ttfts(self, tenant: int) -> list[float]:
        """Seconds to the first token of a tenant's requests."""
        return [answered.ttft for answered in self.answered if answered.ask.tenant == tenant]

    def goodput(self, seconds: float) -> float:
        """Requests a second whose first token came in time."""
        return sum(answered.is_in_time for answered in self.answered) / seconds


def p(quantile: float, values: Sequence[float]) -> float:
    """A quantile, in the same unit; the value itself, none between two."""
    return float(np.quantile(values, quantile, method="higher"))
