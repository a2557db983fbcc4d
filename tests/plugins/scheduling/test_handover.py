"""State handover: a successor decides as the predecessor would have."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gatewayd_evict_cost.config import CostConfig
from gatewayd_evict_cost.strategy import CostEviction
from gatewayd_evict_lfu.strategy import Lfu
from gatewayd_evict_lru.strategy import Lru
from gatewayd_evict_retention.strategy import Retention
from gatewayd_hooks.caching import PageOrigin
from gatewayd_hooks.helpers.handover import hand_over
from gatewayd_hooks.speculation import SpecReport, SpecView
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_prefix_hash.strategy import HashChain
from gatewayd_prefix_radix.strategy import Radix
from gatewayd_spec_adaptive.config import AdaptiveConfig
from gatewayd_spec_adaptive.strategy import Adaptive

NUM_PAGES = 60
SECONDS = [0.0]

EVICTIONS: dict[str, Callable[[], Any]] = {
    "lru": Lru,
    "lfu": Lfu,
    "cost": lambda: CostEviction(CostConfig()),
    "retention": lambda: Retention(lambda: SECONDS[0]),
}


def opened(make: Callable[[], Any], num_pages: int = NUM_PAGES, page_size: int = 4) -> Any:
    strategy = make()
    strategy.open(engine_resources(num_pages=num_pages, page_size=page_size))
    return strategy


def handed_over(old: Any, make: Callable[[], Any]) -> Any:
    """Another one that took its state, once it is closed."""
    new = opened(make)
    assert hand_over(old, new)
    old.close()
    return new


@pytest.mark.parametrize("name", EVICTIONS)
def test_an_eviction_gives_up_the_pages_that_the_one_before_would_have(name: str) -> None:
    make, draw = EVICTIONS[name], random.Random(7)
    kept, moved = opened(make), opened(make)
    free, held, cached = list(range(NUM_PAGES)), list[int](), list[int]()
    num_victims = 0
    for turn in range(6000):
        SECONDS[0] += draw.random()
        event = draw.random()
        if turn % 500 == 499:
            moved = handed_over(moved, make)
        if event < 0.35 and free:
            page = free.pop(draw.randrange(len(free)))
            origin = PageOrigin(
                draw.choice([-1, *held, *cached]),
                draw.randrange(9),
                b"",
                draw.choice([10, 50, 90]),
                draw.choice([0.0, 30.0]),
            )
            for one in (kept, moved):
                if hasattr(one, "cached"):
                    one.cached(page, origin)
            held.append(page)
        elif event < 0.65 and held:
            page = held.pop(draw.randrange(len(held)))
            cached.append(page)
            kept.release(page)
            moved.release(page)
        elif event < 0.8 and cached:
            page = cached.pop(draw.randrange(len(cached)))
            held.append(page)
            kept.reuse(page)
            moved.reuse(page)
        elif event < 0.83 and cached and hasattr(kept, "pin"):
            page = draw.choice(cached)
            kept.pin(page, 20.0)
            moved.pin(page, 20.0)
        elif event >= 0.83 and cached:
            victim = kept.victim()
            assert moved.victim() == victim
            cached.remove(victim)
            free.append(victim)
            num_victims += 1
    assert num_victims > 500


@pytest.mark.parametrize("name", ["lfu", "cost", "retention"])
def test_a_state_of_another_size_or_scale_is_refused(name: str) -> None:
    make = EVICTIONS[name]
    others = [opened(make, num_pages=NUM_PAGES + 1)]
    if name == "cost":
        others += [
            opened(make, page_size=8),
            opened(lambda: CostEviction(CostConfig(even_tokens=CostConfig().even_tokens + 1))),
        ]
    for other in others:
        other.release(1)
        one = opened(make)
        assert not hand_over(other, one)
        assert len(one) == 0


@pytest.mark.parametrize("old", EVICTIONS)
@pytest.mark.parametrize("new", EVICTIONS)
def test_evictions_take_the_state_of_their_like_alone(old: str, new: str) -> None:
    assert hand_over(opened(EVICTIONS[old]), opened(EVICTIONS[new])) is (old == new)


@pytest.mark.parametrize("make", [HashChain, Radix])
def test_a_cache_refuses_what_was_made_for_other_pages(make: Callable[[], Any]) -> None:
    other = Radix if make is HashChain else HashChain
    assert not hand_over(opened(make, page_size=8), opened(make))
    assert not hand_over(opened(make, num_pages=NUM_PAGES + 1), opened(make))
    assert not hand_over(opened(other), opened(make))


def play(controller: Any, draw: np.random.Generator, num_steps: int) -> list[list[int]]:
    """Steps with 4 rows, whose drafts are kept by 80 %; all decisions."""
    rows, decisions = np.arange(4), []
    for _ in range(num_steps):
        view = SpecView(rows, np.full(4, 8), 100, num_tokens=4)
        asked = controller.decide(view)
        decisions.append(asked.tolist())
        accepted = np.minimum(draw.geometric(0.2, 4) - 1, asked)
        count = 4 + int(asked.sum())
        controller.report(
            SpecReport(rows, asked, asked, accepted, count, 1e-4, 0.01 + 1e-5 * count)
        )
    return decisions


def test_a_controller_knows_what_the_one_before_has_measured() -> None:
    old = opened(lambda: Adaptive(AdaptiveConfig()))
    for row in range(4):
        old.admit(row)
    assert any(map(sum, play(old, np.random.default_rng(1), 300)))
    new = handed_over(old, lambda: Adaptive(AdaptiveConfig()))
    fresh = opened(lambda: Adaptive(AdaptiveConfig()))
    for row in range(4):
        new.admit(row)
        fresh.admit(row)
    # It drafts at once; one that knows nothing first looks at steps without.
    assert sum(play(new, np.random.default_rng(2), 1)[0]) > 0
    assert sum(play(fresh, np.random.default_rng(2), 1)[0]) == 0
