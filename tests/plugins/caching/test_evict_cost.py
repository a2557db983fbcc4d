"""``cost``: equals a list; prefix ends first, deeper later."""

from __future__ import annotations

import random

from gatewayd_evict_cost.config import CostConfig
from gatewayd_evict_cost.strategy import CostEviction
from gatewayd_hooks.caching import PageOrigin
from gatewayd_hooks.testing.fakes import engine_resources

NUM_PAGES = 60
SIZE = 16


def opened(even_tokens: int = 64, num_pages: int = NUM_PAGES) -> CostEviction:
    cost = CostEviction(CostConfig(even_tokens=even_tokens))
    cost.open(engine_resources(num_pages=num_pages, page_size=SIZE))
    return cost


def tell_chain(cost: CostEviction, pages: list[int]) -> None:
    for depth, page in enumerate(pages):
        cost.cached(page, PageOrigin(pages[depth - 1] if depth else -1, depth))


def test_a_page_is_not_given_up_before_those_that_go_on_from_it() -> None:
    cost = opened()
    tell_chain(cost, [1, 2, 3])
    # Released in the wrong order, and the first ones are cheaper.
    for page in (1, 2, 3):
        cost.release(page)
    assert [cost.victim() for _ in range(3)] == [3, 2, 1]


def test_a_deep_page_outlives_younger_shallow_ones_in_proportion_to_its_cost() -> None:
    cost = opened(even_tokens=64)
    tell_chain(cost, list(range(20)))
    for page in range(19, -1, -1):
        cost.release(page)
    # The end is 19 pages deep: it costs 1 + 19 * 16 / 64 = 5.75 times a first page.
    gone = []
    for turn in range(40):
        page = 20 + turn % 40
        cost.cached(page, PageOrigin(-1, 0))
        cost.release(page)
        gone.append(cost.victim())
    assert gone.index(19) == 5


def test_old_age_takes_every_page_in_the_end() -> None:
    cost = opened(even_tokens=1)
    tell_chain(cost, list(range(10)))
    for page in range(9, -1, -1):
        cost.release(page)
    gone = set()
    for turn in range(2000):
        # What was given up last comes again, as something else.
        page = 10 if not turn else cost.victim()
        gone.add(page)
        cost.cached(page, PageOrigin(-1, 0))
        cost.release(page)
    assert set(range(10)) <= gone


def test_where_nothing_is_the_end_of_a_prefix_a_page_is_given_up_all_the_same() -> None:
    cost = opened()
    tell_chain(cost, [1, 2])
    cost.release(1)
    assert cost.victim() == 1
    # Its number belongs to another page now, from which nothing goes on.
    cost.cached(1, PageOrigin(-1, 0))
    cost.release(1)
    cost.release(2)
    assert {cost.victim(), cost.victim()} == {1, 2}


def test_fifty_thousand_operations_agree_with_a_list() -> None:
    draw, cost = random.Random(5), opened()
    free, held = list(range(NUM_PAGES)), list[int]()
    cached: dict[int, tuple[float, int]] = {}  # page to rank and time
    parent: dict[int, int] = {}  # of known pages; an evicted one is nobody's parent any more
    depth: dict[int, int] = {}
    uses: dict[int, int] = {}
    floor = 0.0
    for time in range(50_000):
        choice = draw.random()
        if choice < 0.3 and free:
            page = free.pop(draw.randrange(len(free)))
            before = draw.choice([-1, *parent]) if parent else -1
            parent[page], depth[page] = before, depth[before] + 1 if before >= 0 else 0
            cost.cached(page, PageOrigin(before, depth[page]))
            held.append(page)
        elif choice < 0.6 and held:
            page = held.pop(draw.randrange(len(held)))
            cost.release(page)
            uses[page] = uses.get(page, 0) + 1
            cached[page] = (floor + uses[page] * (1 + depth[page] * SIZE / 64), time)
        elif choice < 0.75 and cached:
            page = draw.choice(list(cached))
            cost.reuse(page)
            del cached[page]
            held.append(page)
        elif cached:
            inner = set(parent.values())
            leaves = {p: rank for p, rank in cached.items() if p not in inner}
            wanted = min(leaves or cached, key=lambda p: cached[p])
            assert cost.victim() == wanted
            floor = max(floor, cached.pop(wanted)[0])
            del parent[wanted], uses[wanted]
            parent = {p: -1 if q == wanted else q for p, q in parent.items()}
            free.append(wanted)
        assert len(cost) == len(cached)
    assert len(cost._order) <= 2 * NUM_PAGES + 1
