"""``recompute``: victims by class, then arrival, then admission."""

import random

import numpy as np
import pytest

from gatewayd_hooks.preemption import PreemptionMode
from gatewayd_hooks.scheduling import QueueView
from gatewayd_preempt_recompute.strategy import Recompute


def view_of(priority: list[int], arrival: list[float]) -> QueueView:
    slots = len(priority)
    return QueueView(
        running=np.arange(slots, dtype=np.int32),
        num_tokens=np.full(slots, 9, np.int32),
        num_computed=np.full(slots, 8, np.int32),
        priority=np.array(priority, np.int8),
        tenant=np.zeros(slots, np.int32),
        arrival=np.array(arrival, np.float64),
        token_budget=64,
        max_running=slots,
        free_pages=0,
        page_size=16,
        uncached=lambda slot: 1,
    )


@pytest.mark.parametrize(
    ("priority", "arrival", "candidates", "chosen"),
    [
        ([0, 1, 2], [9.0, 8.0, 7.0], [0, 1, 2], 2),  # the lowest class, though the oldest
        ([1, 1, 1], [2.0, 3.0, 1.0], [0, 1, 2], 1),  # then the newest
        ([1, 1, 1], [5.0, 5.0, 5.0], [2, 0, 1], 1),  # then the one admitted last
        ([2, 1, 2], [9.0, 9.0, 1.0], [1, 2], 2),  # candidates only
        ([0], [1.0], [0], 0),  # a sequence alone gives way itself
    ],
)
def test_the_victim(
    priority: list[int], arrival: list[float], candidates: list[int], chosen: int
) -> None:
    victim = Recompute().victim(view_of(priority, arrival), np.array(candidates, np.int32))
    assert victim == (chosen, PreemptionMode.RECOMPUTE)


def test_the_choice_agrees_with_sorting() -> None:
    draw = random.Random(4)
    for _ in range(300):
        slots = draw.randrange(1, 20)
        priority = [draw.randrange(3) for _ in range(slots)]
        arrival = [float(draw.randrange(6)) for _ in range(slots)]
        running = draw.sample(range(slots), draw.randint(1, slots))
        expected = max(
            enumerate(running), key=lambda item: (priority[item[1]], arrival[item[1]], item[0])
        )[1]
        view = view_of(priority, arrival)
        assert Recompute().victim(view, np.array(running, np.int32)).slot == expected
