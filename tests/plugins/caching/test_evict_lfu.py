"""``lfu``: equals a list, and beats ``lru`` on popular prefixes."""

from __future__ import annotations

import random

import pytest

from gatewayd_evict_lfu.strategy import Lfu
from gatewayd_evict_lru.strategy import Lru
from gatewayd_hooks.testing.fakes import engine_resources

NUM_PAGES = 400


def opened(num_pages: int = NUM_PAGES) -> Lfu:
    lfu = Lfu()
    lfu.open(engine_resources(num_pages=num_pages))
    return lfu


def test_the_least_used_page_goes_first_and_among_equals_the_oldest() -> None:
    lfu = opened()
    for page in (3, 1, 2):
        lfu.release(page)
    lfu.reuse(3)
    lfu.release(3)
    assert [lfu.victim() for _ in range(3)] == [1, 2, 3]


def test_old_favourites_go_when_others_have_become_popular() -> None:
    lfu = opened()
    for _ in range(5):
        lfu.release(0)
        lfu.reuse(0)
    lfu.release(0)
    assert len(lfu) == 1
    gone = 0
    for round_ in range(100):
        lfu.release(1 + round_ % 7)
        gone = lfu.victim()
        if gone == 0:
            break
    assert gone == 0


def test_a_hundred_thousand_operations_agree_with_a_list() -> None:
    draw = random.Random(3)
    lfu = opened()
    uses = [0] * NUM_PAGES
    floor = 0
    cached: list[tuple[int, int, int]] = []  # rank, time, page
    held = list(range(NUM_PAGES))
    for time in range(100_000):
        choice = draw.random()
        if choice < 0.5 and held:
            page = held.pop(draw.randrange(len(held)))
            lfu.release(page)
            uses[page] += 1
            cached.append((floor + uses[page], time, page))
        elif choice < 0.85 and cached:
            page = cached.pop(draw.randrange(len(cached)))[2]
            lfu.reuse(page)
            held.append(page)
        elif cached:
            floor, _, page = min(cached)
            cached.remove(min(cached))
            uses[page] = 0
            assert lfu.victim() == page
            held.append(page)
        else:
            with pytest.raises(LookupError):
                lfu.victim()
        assert len(lfu) == len(cached)
    assert len(lfu._order) <= 2 * NUM_PAGES


def hits(strategy: Lfu | Lru, wanted: list[int], room: int) -> int:
    """Of prefixes of one page each, those found in a cache with room for so many."""
    strategy.open(engine_resources(num_pages=room))
    page_of: dict[int, int] = {}
    prefix_of: dict[int, int] = {}
    found = 0
    for prefix in wanted:
        page = page_of.get(prefix)
        if page is not None:
            found += 1
            strategy.reuse(page)
        else:
            page = len(page_of) if len(page_of) < room else strategy.victim()
            page_of.pop(prefix_of.get(page, -1), None)
            page_of[prefix], prefix_of[page] = page, prefix
        strategy.release(page)
    return found


def test_a_scan_does_not_push_out_what_is_popular() -> None:
    draw = random.Random(4)
    popular = [draw.randrange(20) for _ in range(4000)]
    wanted = [prefix for k, one in enumerate(popular) for prefix in (one, 1000 + k, 9000 + k)]
    assert hits(Lfu(), wanted, room=40) > 1.2 * hits(Lru(), wanted, room=40)
