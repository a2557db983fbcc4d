"""Hot swap storm: random swaps and limits under load, against an undisturbed engine."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import SetLimits, SwapStrategy
from gatewayd_hooks.strategy import Kind
from tests.engine.core.hot_swaps import OFFERS, TIGHT, settle, swap
from tests.engine.core.prompts import PROMPTS

Make = Callable[..., Any]
MAX_RUNNING = 12


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) * 99 // 100]


class Busy:
    """An engine with requests, and when each of their tokens came.

    Attributes:
        steps: seconds of each.
        gaps: seconds between two steps that gave tokens to the same request.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.steps: list[float] = []
        self.gaps: list[float] = []
        self._last: dict[int, float] = {}
        self._now = 0.0  # of this engine alone: what passes while others work does not count

    @property
    def num_running(self) -> int:
        return sum(answer.finished is None for answer in self.engine.answers.values())

    def submit(self, prompt: list[int], max_tokens: int) -> int:
        (i,) = self.engine.submit(prompt, max_tokens=max_tokens, ignore_eos=True)
        return int(i)

    def spend(self, work: Callable[[], Any]) -> Any:
        """Do something between two steps."""
        began = time.perf_counter()
        try:
            return work()
        finally:
            self._now += time.perf_counter() - began

    def step(self) -> None:
        if not self.engine.core.has_work:
            return
        before = self._now
        output = self.spend(self.engine.step)
        self.steps.append(self._now - before)
        for i in set(np.frombuffer(output.sequences, np.int64).tolist()):
            if i in self._last:
                self.gaps.append(self._now - self._last[i])
            self._last[i] = self._now
        self.engine.core.check()


def change(engine: Any, rng: random.Random) -> None:
    """Begin to fill a slot anew, or set a limit."""
    kind = rng.choice([*OFFERS, None])
    if kind is None:
        engine.core.swaps.limit(SetLimits(rng.choice([24, 48, 96]), rng.choice([50.0, 500.0])))
    else:
        engine.core.swaps.start(SwapStrategy(1, kind.value, list(rng.choice(OFFERS[kind]))))


@pytest.mark.parametrize(
    ("num_swaps", "seed"), [(90, 1), pytest.param(1000, 2, marks=pytest.mark.slow)]
)
@pytest.mark.flaky(reruns=2)
def test_random_swaps_under_load_fail_nothing_and_delay_no_token_by_more_than_a_step(
    make_engine: Make, num_swaps: int, seed: int
) -> None:
    rng = random.Random(seed)
    left_alone, swapped = Busy(make_engine(**TIGHT)), Busy(make_engine(**TIGHT))
    swap(swapped.engine, Kind.SCHEDULER, StrategyChoice("fcfs"))
    prompts = [PROMPTS[rng.randrange(8)][: rng.randrange(8, 60)] for _ in range(num_swaps // 3)]
    ids: list[tuple[int, int]] = []
    gc.collect()  # what other tests left behind is not counted
    threads, opened = threading.active_count(), descriptors()
    made = 0
    cores = left_alone.engine.core, swapped.engine.core
    while made < num_swaps or cores[1].swaps.is_busy or any(core.has_work for core in cores):
        while prompts and max(swapped.num_running, left_alone.num_running) < MAX_RUNNING:
            prompt, length = prompts.pop(), rng.randrange(4, 40)
            ids.append((left_alone.submit(prompt, length), swapped.submit(prompt, length)))
        if made < num_swaps and not swapped.engine.core.swaps.is_busy:
            swapped.spend(lambda: change(swapped.engine, rng))
            made += 1
        swapped.spend(lambda: settle(swapped.engine))
        # By turns, so that what else the machine does meets both.
        left_alone.step()
        swapped.step()
    assert len(ids) == num_swaps // 3
    for calm, stormy in ids:
        answer = swapped.engine.answers[stormy]
        assert answer.finished.error is None
        assert answer.tokens == left_alone.engine.answers[calm].tokens
    calm_gap, gap, step = p99(left_alone.gaps), p99(swapped.gaps), p99(left_alone.steps)
    print(
        f"{made} swaps: p99 inter-token gap {1000 * gap:.1f} ms, without {1000 * calm_gap:.1f} ms, "
        f"step {1000 * step:.1f} ms ({1000 * np.median(left_alone.steps):.1f} ms the median)"
    )
    assert gap <= calm_gap + step
    core = swapped.engine.core
    assert core.stats.faults == 0
    assert core.stats.preemptions > 0
    assert threading.active_count() == threads
    assert descriptors() == opened
    assert np.all(~core.strategies.processors._wants)
