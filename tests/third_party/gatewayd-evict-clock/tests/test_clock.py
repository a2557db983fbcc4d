"""Against a clock written down as plainly as can be."""

from collections.abc import Sequence

import pytest
from gatewayd_hooks.testing.samples.campaign import campaign
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_evict_clock.config import ClockSettings
from gatewayd_evict_clock.strategy import ClockEviction

TTL = 10.0
EVENTS = st.lists(
    st.tuples(st.sampled_from(["use", "use", "use", "victim", "wait"]), st.integers(0, 7)),
    max_size=80,
)


class Plain:
    """Pages as dictionaries in a list; the first is the one before the hand."""

    def __init__(self, chances: int) -> None:
        self.chances = chances
        self.ring: list[dict[str, float]] = []
        self.held: dict[int, float] = {}

    def use(self, page: int, now: float) -> None:
        found = [each for each in self.ring if each["page"] == page]
        if found:
            self.ring.remove(found[0])
            self.held[page] = min(found[0]["chances"] + 1, self.chances)
        else:
            chances = self.held.pop(page, 0)
            self.ring.append({"page": page, "chances": chances, "since": now})

    def victim(self, now: float) -> int:
        oldest = min(self.ring, key=lambda each: each["since"])
        if now - oldest["since"] >= TTL:
            self.ring.remove(oldest)
            return int(oldest["page"])
        while self.ring[0]["chances"] > 0:
            spared = self.ring.pop(0)
            spared["chances"] -= 1
            self.ring.append(spared)
        return int(self.ring.pop(0)["page"])


@campaign
@given(chances=st.integers(0, 3), events=EVENTS)
def test_it_gives_up_what_the_plain_one_gives_up(
    chances: int, events: Sequence[tuple[str, int]]
) -> None:
    now = 0.0
    clock = ClockEviction(ClockSettings(chances=chances, ttl_seconds=TTL), lambda: now)
    plain = Plain(chances)
    for event, number in events:
        now += 0.25  # no two at once: which of two would be the older?
        if event == "wait":
            now += number
        elif event == "use":
            is_cached = any(each["page"] == number for each in plain.ring)
            (clock.reuse if is_cached else clock.release)(number)
            plain.use(number, now)
        elif plain.ring:
            assert clock.victim() == plain.victim(now)
        assert len(clock) == len(plain.ring)


def survivors(chances: int) -> int:
    """Ten pages that are asked for again and again, between scans; how many are still cached."""
    clock = ClockEviction(ClockSettings(chances=chances), lambda: 0.0)
    popular = set(range(10))
    cached: set[int] = set()
    scans = [[*popular, *range(first, first + 25)] for first in range(100, 600, 25)]
    for page in sum(scans, [*popular]):
        if page in cached:
            clock.reuse(page)
        clock.release(page)
        cached.add(page)
        if len(cached) > 30:
            cached.remove(clock.victim())
    return len(popular & cached)


def test_pages_that_are_hit_outlive_scans() -> None:
    # Ten and 25 are more than 30, so without chances all are gone when they are asked for again.
    assert survivors(0) < 10
    assert survivors(1) == survivors(2) == 10


def hit(clock: ClockEviction, page: int, times: int) -> None:
    """Release a page and find it again, so many times; it is cached in the end."""
    clock.release(page)
    for _ in range(times):
        clock.reuse(page)
        clock.release(page)


def test_each_hit_is_one_round() -> None:
    clock = ClockEviction(ClockSettings(chances=2), lambda: 0.0)
    hit(clock, 1, 2)
    hit(clock, 2, 1)
    hit(clock, 3, 0)
    assert [clock.victim() for _ in range(3)] == [3, 2, 1]


def test_a_page_that_was_given_up_begins_anew() -> None:
    now = 0.0
    clock = ClockEviction(ClockSettings(ttl_seconds=TTL), lambda: now)
    hit(clock, 1, 2)
    now = TTL
    assert clock.victim() == 1
    hit(clock, 1, 0)
    hit(clock, 2, 0)
    assert clock.victim() == 1


@pytest.mark.parametrize(("seconds", "expected"), [(TTL - 0.5, 2), (TTL, 1)])
def test_hits_do_not_help_when_time_is_over(seconds: float, expected: int) -> None:
    now = 0.0
    clock = ClockEviction(ClockSettings(ttl_seconds=TTL), lambda: now)
    hit(clock, 1, 1)
    now = 0.1
    hit(clock, 2, 0)
    now = seconds
    assert clock.victim() == expected
