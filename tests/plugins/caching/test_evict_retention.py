"""``retention``: equals a list, by a manual clock."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_evict_retention.strategy import Retention
from gatewayd_hooks.caching import NORMAL_PRIORITY, PageOrigin
from gatewayd_hooks.testing.fakes import engine_resources

NUM_PAGES = 40


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock) -> Retention:
    retention = Retention(clock)
    retention.open(engine_resources(num_pages=NUM_PAGES))
    return retention


def wish(priority: int, seconds: float) -> PageOrigin:
    return PageOrigin(-1, 0, b"", priority, seconds)


def drain(retention: Retention) -> list[int]:
    return [retention.victim() for _ in range(len(retention))]


def test_the_lowest_priority_goes_first_and_within_one_the_oldest() -> None:
    retention = opened(Clock())
    for page, priority in ((1, 90), (2, 10), (3, NORMAL_PRIORITY), (4, 90), (5, 10)):
        retention.cached(page, wish(priority, 60))
        retention.release(page)
    retention.release(6)
    assert drain(retention) == [2, 5, 3, 6, 1, 4]


def test_after_its_time_a_page_is_a_normal_one() -> None:
    clock = Clock()
    retention = opened(clock)
    for page, seconds in ((1, 10.0), (2, 100.0)):
        retention.cached(page, wish(100, seconds))
        retention.release(page)
    clock.now += 11
    retention.release(3)
    assert drain(retention) == [1, 3, 2]


def test_the_time_counts_from_the_last_use() -> None:
    clock = Clock()
    retention = opened(clock)
    retention.cached(1, wish(100, 10))
    retention.release(1)
    clock.now += 9
    retention.reuse(1)
    clock.now += 100
    retention.release(1)
    retention.release(2)
    clock.now += 9
    assert drain(retention) == [2, 1]


def test_a_low_priority_does_not_rise_with_time() -> None:
    clock = Clock()
    retention = opened(clock)
    retention.release(2)
    retention.cached(1, wish(0, 10))
    retention.release(1)
    clock.now += 1000
    assert drain(retention) == [1, 2]


def test_a_longer_wish_that_is_told_later_counts() -> None:
    retention = opened(Clock())
    retention.cached(1, PageOrigin(-1, 0))
    retention.release(1)
    retention.reuse(1)
    retention.cached(1, wish(80, 10))
    retention.release(1)
    retention.release(2)
    assert drain(retention) == [2, 1]


def test_a_pin_covers_what_comes_before_and_ends() -> None:
    clock = Clock()
    retention = opened(clock)
    for page, parent in ((1, -1), (2, 1), (3, 2), (4, 1)):
        retention.cached(page, PageOrigin(parent, 0, b"", 100, 1000))
        retention.release(page)
    retention.pin(2, 60)
    assert [retention.victim(), retention.victim()] == [3, 4]
    clock.now += 61
    retention.release(5)
    assert drain(retention) == [5, 1, 2]


def chains(retention: Retention, parents: dict[int, int]) -> None:
    """Cached pages by the page before each, and released tail first."""
    for page, parent in parents.items():
        retention.cached(page, PageOrigin(parent, 0))
    for page in reversed(parents):
        retention.release(page)


def test_it_tells_its_pins_until_they_end_or_their_pages_go() -> None:
    clock = Clock()
    retention = opened(clock)
    chains(retention, {0: -1, 1: 0, 2: 1, 3: -1, 4: 3})
    retention.pin(2, 60)
    retention.pin(4, 90)
    assert sorted(retention.pinned()) == [0, 1, 2, 3, 4]
    other = opened(clock)
    assert other.import_state(retention.export_state())
    clock.now += 61
    for one in (retention, other):
        assert sorted(one.pinned()) == [3, 4]
        one.drop(4)
        assert list(one.pinned()) == [3], "what is left of a pinned prompt"
        one.pin(3, 0)
        assert list(one.pinned()) == []


def test_taking_a_pin_back_leaves_others_with_the_same_beginning() -> None:
    for kept, back in ((2, 3), (3, 2), (1, 3)):
        retention = opened(Clock())
        chains(retention, {0: -1, 1: 0, 2: 1, 3: 1, 4: -1, 5: 4})
        retention.pin(kept, 60)
        retention.pin(back, 90)
        retention.pin(back, 0)
        assert drain(retention)[-2 - (kept != 1) :] == [*({kept} - {1}), 1, 0]


def test_what_is_left_of_a_pinned_prompt_stays_pinned_and_can_be_taken_back() -> None:
    for is_back in (False, True):
        retention = opened(Clock())
        chains(retention, {0: -1, 1: 0, 2: 1})
        retention.pin(2, 60)
        assert retention.victim() == 2, "nothing else is left"
        if is_back:
            retention.pin(1, 0)
        retention.release(7)
        assert drain(retention) == ([1, 0, 7] if is_back else [7, 1, 0])


@pytest.mark.parametrize("every", [1, 50])
def test_taking_all_pins_back_costs_no_more_than_there_are_pages(every: int) -> None:
    num_pages = 4000
    ranked = 0

    class Counting(Retention):
        def _rank(self, page: int) -> None:
            nonlocal ranked
            ranked += 1
            super()._rank(page)

    retention = Counting()
    retention.open(engine_resources(num_pages=num_pages))
    chains(retention, {page: page - 1 for page in range(num_pages)})
    retention.pin(num_pages - 1, 600)
    for page in range(0, num_pages, every):
        retention.pin(page, 600 - 600 * page / num_pages)
    ranked = 0
    for page in range(num_pages):
        retention.pin(page, 0)
    assert num_pages <= ranked <= 2 * num_pages
    assert drain(retention) == [*range(num_pages)][::-1]


@given(
    parents=st.lists(st.integers(-1, 10), min_size=12, max_size=12),
    calls=st.lists(
        st.tuples(st.integers(0, 11), st.sampled_from([0.0, 5.0, 20.0, 60.0])), max_size=12
    ),
    later=st.sampled_from([0.0, 10.0, 30.0]),
)
def test_pinned_is_what_pins_end_at_or_behind(
    parents: list[int], calls: list[tuple[int, float]], later: float
) -> None:
    """Against the pins themselves."""
    clock = Clock()
    retention = opened(clock)
    before = {page: min(parent, page - 1) for page, parent in enumerate(parents)}
    chains(retention, before)
    ends: dict[int, float] = {}
    for page, seconds in calls:
        retention.pin(page, seconds)
        ends[page] = max(seconds, ends.get(page, 0.0)) if seconds else 0.0
    clock.now += later
    pinned = set[int]()
    for page, end in ends.items():
        while end > later and page >= 0:
            pinned.add(page)
            page = before[page]
    assert set(drain(retention)[12 - len(pinned) :]) == pinned


def test_a_pin_while_the_page_is_held_counts_when_it_is_released() -> None:
    retention = opened(Clock())
    retention.cached(1, PageOrigin(-1, 0))
    retention.pin(1, 60)
    retention.pin(9, 60)
    for page in (1, 9, 2):
        retention.release(page)
    assert drain(retention) == [9, 2, 1], "9 was no cached page when it was pinned"


def test_fifty_thousand_operations_agree_with_a_list() -> None:
    draw, clock = random.Random(2), Clock()
    retention = opened(clock)
    free, held = list(range(NUM_PAGES)), list[int]()
    cached: dict[int, tuple[int, float]] = {}  # page to time of release, and its end
    wishes: dict[int, tuple[int, float]] = {}
    pins: dict[int, float] = {}

    def level(page: int) -> tuple[int, int]:
        when, until = cached[page]
        priority = wishes[page][0]
        if pins.get(page, 0) > clock.now:
            return 101, when
        return (priority if until > clock.now else min(priority, NORMAL_PRIORITY)), when

    for turn in range(50_000):
        clock.now += draw.random()
        choice = draw.random()
        if choice < 0.25 and free:
            page = free.pop(draw.randrange(len(free)))
            wishes[page] = draw.choice([0, 50, 50, 70, 100]), draw.choice([0.0, 5.0, 50.0])
            retention.cached(page, wish(*wishes[page]))
            held.append(page)
        elif choice < 0.55 and held:
            page = held.pop(draw.randrange(len(held)))
            retention.release(page)
            cached[page] = turn, clock.now + wishes[page][1]
        elif choice < 0.7 and cached:
            page = draw.choice(list(cached))
            retention.reuse(page)
            del cached[page]
            held.append(page)
        elif choice < 0.75:
            page, seconds = draw.randrange(NUM_PAGES), draw.choice([0.0, 20.0])
            retention.pin(page, seconds)
            if page in cached or page in held:
                pins[page] = max(clock.now + seconds, pins.get(page, 0)) if seconds else 0
        elif cached:
            wanted = min(cached, key=level)
            assert retention.victim() == wanted
            del cached[wanted]
            pins.pop(wanted, None)
            free.append(wanted)
        assert len(retention) == len(cached)
    assert len(retention._order) + len(retention._ends) <= 4 * NUM_PAGES + 2
