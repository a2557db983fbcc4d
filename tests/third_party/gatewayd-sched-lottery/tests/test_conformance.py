"""The scheduler keeps the contract, and its odds."""

from collections import Counter

import numpy as np
import pytest
from gatewayd_hooks.scheduling import Priority, QueueView, SchedulerStrategy
from gatewayd_hooks.testing.scheduling import SchedulerConformance
from pydantic import ValidationError

from gatewayd_sched_lottery.config import LotteryConfig
from gatewayd_sched_lottery.strategy import Lottery


class TestLottery(SchedulerConformance):
    """What every scheduler must do."""

    def make(self) -> SchedulerStrategy:
        """Build one with its default settings."""
        return Lottery(LotteryConfig())


def test_the_first_to_win_are_as_many_as_their_tickets() -> None:
    draws = 4000
    lottery = Lottery(LotteryConfig(tickets=(6, 3, 1)))
    view = QueueView(
        running=np.zeros(0, np.int32),
        num_tokens=np.full(3, 8, np.int32),
        num_computed=np.zeros(3, np.int32),
        priority=np.array(list(Priority), np.int8),
        tenant=np.zeros(3, np.int32),
        arrival=np.zeros(3, np.float64),
        token_budget=8,
        max_running=1,
        free_pages=8,
        page_size=16,
        uncached=lambda slot: 8,
    )
    for slot in range(3):
        lottery.enqueue(slot, view, front=False)
    wins = Counter(int(lottery.plan(view).slots[0]) for _ in range(draws))
    # Four standard deviations of a binomial are 0.031.
    assert [wins[slot] / draws for slot in range(3)] == pytest.approx([0.6, 0.3, 0.1], abs=0.035)


def test_a_class_without_tickets_is_refused() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        LotteryConfig(tickets=(1, 1, 0))
