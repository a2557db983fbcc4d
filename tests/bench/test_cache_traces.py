"""Cache traces: no strategy beats the optimum on small traces, and good ones come close."""

from __future__ import annotations

from functools import cache
from itertools import product
from random import Random

import numpy as np
import pytest

from tests.bench.cache_traces import (
    CACHES,
    MOST_POINTS_BEHIND,
    PAGE,
    Request,
    Simulation,
    hit_rate,
    ids,
    multi_turn,
    optimal_hit_rate,
    pages_of,
    rag,
    zipf,
)


@pytest.mark.parametrize("num_pages", [800, 1600])
def test_on_popular_documents_frequency_comes_close_to_the_optimum(num_pages: int) -> None:
    trace = zipf(6000)
    best = 100 * optimal_hit_rate(trace, num_pages)
    rates = {e: 100 * hit_rate(trace, "hash", e, num_pages) for e in ("lru", "lfu", "cost")}
    assert all(0 < rate <= best for rate in rates.values())
    assert best - rates["lfu"] < MOST_POINTS_BEHIND
    assert best - rates["cost"] < MOST_POINTS_BEHIND
    assert min(rates["lfu"], rates["cost"]) > rates["lru"]


@pytest.mark.parametrize("cache", CACHES)
def test_conversations_and_documents_save_prefill(cache: str) -> None:
    assert hit_rate(multi_turn(30), cache, "lru", 1000) > 0.85
    assert hit_rate(rag(200), cache, "lru", 1000) > 0.4


def test_the_tree_finds_what_is_left_of_a_page() -> None:
    trace = rag(150)
    num_pages = pages_of(trace)
    assert hit_rate(trace, "radix", "lru", num_pages) > hit_rate(trace, "hash", "lru", num_pages)


def test_a_prompt_that_comes_again_is_found_but_for_a_token_or_a_page() -> None:
    again = Request(ids(Random(1), 4 * PAGE), ids(Random(2), 2))
    for name, cached in (("hash", 3 * PAGE), ("radix", 4 * PAGE - 1)):
        simulation = Simulation(name, "lru", 16)
        assert [simulation.serve(again) for _ in range(3)] == [0, cached, cached]


def test_the_optimum_is_that_of_an_exhaustive_search() -> None:
    draw = Random(7)
    lengths = (1, 2, 2, 3)
    for _ in range(20):
        order = [draw.randrange(4) for _ in range(9)]
        trace = [
            Request(np.zeros((lengths[d] + 1) * PAGE, np.int32), np.zeros(1, np.int32), d)
            for d in order
        ]
        num_pages = draw.randrange(4, 8)

        @cache
        def most(time: int, there: tuple[int, ...], order: tuple[int, ...], room: int) -> int:
            """Pages found from here on, whatever is given up."""
            if time == len(order):
                return 0
            d, best = order[time], 0
            kept = [range(pages + 1) for pages in there]
            kept[d] = range(lengths[d], lengths[d] + 1)
            for left in product(*kept):
                if sum(left) + 1 <= room:
                    best = max(best, most(time + 1, left, order, room))
            return there[d] + best

        found = PAGE * most(0, (0,) * 4, tuple(order), num_pages)
        assert optimal_hit_rate(trace, num_pages) == found / sum(len(r.prompt) for r in trace)
