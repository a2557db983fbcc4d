"""``swap``: swaps from the measured break-even length on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gatewayd_hooks.preemption import PreemptionMode, SwapCosts
from gatewayd_hooks.scheduling import QueueView
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_preempt_swap.config import SwapConfig
from gatewayd_preempt_swap.strategy import _TRIAL, Swap

KIB = 1 << 10


def view_of(num_computed: list[int]) -> QueueView:
    slots = len(num_computed)
    return QueueView(
        running=np.arange(slots, dtype=np.int32),
        num_tokens=np.array(num_computed, np.int32) + 1,
        num_computed=np.array(num_computed, np.int32),
        priority=np.ones(slots, np.int8),
        tenant=np.zeros(slots, np.int32),
        arrival=np.arange(slots, dtype=np.float64),
        token_budget=64,
        max_running=slots,
        free_pages=0,
        page_size=16,
        uncached=lambda slot: 1,
    )


def make(memory: str = "1MiB") -> Swap:
    strategy = Swap(SwapConfig.model_validate({"memory": memory}))
    strategy.open(engine_resources(page_bytes=KIB))
    return strategy


def mode(strategy: Swap, num_computed: int) -> PreemptionMode:
    return strategy.victim(view_of([1, num_computed]), np.array([0, 1], np.int32)).mode


@pytest.mark.parametrize(
    ("costs", "crossover"),
    [
        (SwapCosts(0.0, 0.0, 0.0, 0), 0),  # not measured yet
        (SwapCosts(0.001, 0.05, 0.008, 0), 100),  # 0.5 ms a token remain of 1 ms
        (SwapCosts(0.001, 0.0, 0.008, 0), 0),
        (SwapCosts(0.001, 0.05, 0.02, 0), math.inf),  # a page costs more than its tokens
    ],
)
def test_the_crossover_is_where_the_lines_cross(costs: SwapCosts, crossover: float) -> None:
    strategy = make()
    strategy.learn(costs)
    assert strategy.crossover == pytest.approx(crossover)
    for tokens in (1, 40, 99, 101, 700):
        wanted = PreemptionMode.SWAP if tokens > crossover else PreemptionMode.RECOMPUTE
        assert mode(strategy, tokens) is wanted


def test_one_in_so_many_is_swapped_whatever_it_costs() -> None:
    strategy = make()
    strategy.learn(SwapCosts(0.001, 9.0, 0.1, 0))
    modes = [mode(strategy, 50) for _ in range(4 * _TRIAL)]
    assert modes.count(PreemptionMode.SWAP) == 4


def test_memory_is_a_limit() -> None:
    strategy = make("10KiB")
    strategy.learn(SwapCosts(0.0, 0.0, 0.0, 6))
    assert mode(strategy, 64) is PreemptionMode.SWAP
    assert mode(strategy, 65) is PreemptionMode.RECOMPUTE
