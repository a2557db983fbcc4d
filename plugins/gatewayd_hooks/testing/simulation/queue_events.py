"""Events that happen to a fake queue between its steps, and random sequences of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from gatewayd_hooks.testing.fakes import FakeQueue, FakeSequence


@dataclass(frozen=True, slots=True)
class Arrival:
    """New request."""

    prompt: int
    output: int
    priority: int
    tenant: int
    cached: int
    front: bool
    weight: float = 1.0
    deadline: float = math.inf


@dataclass(frozen=True, slots=True)
class Cancel:
    """A live sequence is cancelled."""

    choice: int


@dataclass(frozen=True, slots=True)
class Preempt:
    """A running sequence is preempted."""

    choice: int


@dataclass(frozen=True, slots=True)
class Hold:
    """A waiting sequence is held for some steps."""

    choice: int
    steps: int


@dataclass(frozen=True, slots=True)
class Park:
    """An operator holds a live sequence."""

    choice: int


@dataclass(frozen=True, slots=True)
class Unpark:
    """An operator releases a held sequence."""

    choice: int


@dataclass(frozen=True, slots=True)
class Bump:
    """An operator changes a sequence's class; None puts it first in the one it has."""

    choice: int
    priority: int | None


@dataclass(frozen=True, slots=True)
class Steps:
    """Some engine steps are planned."""

    count: int


Event = Arrival | Cancel | Preempt | Hold | Park | Unpark | Bump | Steps

_CHOICES = st.integers(0, 1000)


def _arrivals(least: int) -> st.SearchStrategy[Arrival]:
    """Return requests whose prompts have at least that many tokens."""
    return st.builds(
        Arrival,
        prompt=st.integers(least, 150),
        output=st.integers(1, 12),
        priority=st.integers(0, 2),
        tenant=st.integers(0, 3),
        cached=st.integers(0, 100),
        front=st.booleans(),
        weight=st.sampled_from([1.0, 1.0, 0.25, 3.0]),
        deadline=st.sampled_from([math.inf, math.inf, 0.0, 2.0, 30.0]),
    )


_STEPS = st.builds(Steps, st.integers(1, 4))
_INCIDENTS = [
    _STEPS,
    st.builds(Cancel, _CHOICES),
    st.builds(Preempt, _CHOICES),
    st.builds(Hold, _CHOICES, st.integers(1, 8)),
]
_BY_OPERATORS = [
    st.builds(Park, _CHOICES),
    st.builds(Unpark, _CHOICES),
    st.builds(Bump, _CHOICES, st.sampled_from([None, None, 0, 1, 2])),
]
EVENTS = st.lists(st.one_of(*[_arrivals(1)] * 3, *_INCIDENTS), max_size=40)
SIZES = st.fixed_dictionaries(
    {
        "max_batch_tokens": st.integers(1, 64),
        "max_running": st.integers(1, 6),
        # The longest sequence needs 11 pages of 16: one always fits.
        "num_pages": st.integers(11, 40),
    }
)

STORMS = st.lists(
    st.one_of(*[_arrivals(32)] * 4, _STEPS, *_INCIDENTS, *_BY_OPERATORS), min_size=12, max_size=30
)
"""Many long prompts."""
TIGHT = st.fixed_dictionaries(
    {
        "max_batch_tokens": st.integers(4, 64),
        "max_running": st.integers(2, 6),
        "num_pages": st.integers(11, 18),
    }
)
"""Page pools for one or two of them."""


def happen(queue: FakeQueue, event: Event) -> None:
    """Apply an event; no effect if no sequence qualifies. Not for ``Steps``."""
    match event:
        case Arrival():
            queue.arrive(
                event.prompt,
                event.output,
                priority=event.priority,
                tenant=event.tenant,
                cached=event.cached,
                front=event.front,
                weight=event.weight,
                deadline=event.deadline,
            )
        case Cancel() if len(queue):
            queue.cancel(_chosen(queue.running + queue.waiting, event.choice))
        case Preempt() if queue.running:
            queue.preempt(_chosen(queue.running, event.choice))
        case Hold() if queue.waiting:
            queue.hold(_chosen(queue.waiting, event.choice), event.steps)
        case Park() if len(queue):
            queue.park(_chosen(queue.running + queue.waiting, event.choice))
        case Unpark() if queue.parked:
            queue.unpark(_chosen(queue.parked, event.choice))
        case Bump() if len(queue):
            queue.bump(_chosen(queue.running + queue.waiting, event.choice), event.priority)


def _chosen(among: Sequence[FakeSequence], choice: int) -> FakeSequence:
    return among[choice % len(among)]
