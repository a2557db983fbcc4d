"""Eviction conformance: rejects evictions of the wrong page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.eviction import EvictionConformance

Verdict = Callable[..., list[str]]
Catches = Callable[..., bool]


def test_a_sound_one_passes(verdict: Verdict) -> None:
    assert verdict(EvictionConformance, Kind.EVICTION, "lru") == []


# Each of these breaks one rule of a sound strategy, which is changed in place.


def ignores_reuse(eviction: Any) -> None:
    eviction.reuse = lambda page: None


def gives_a_page_up_twice(eviction: Any) -> None:
    victim, release = eviction.victim, eviction.release

    def broken() -> int:
        page = int(victim())
        release(page)
        return page

    eviction.victim = broken


def makes_a_page_up_when_empty(eviction: Any) -> None:
    victim = eviction.victim
    eviction.victim = lambda: victim() if len(eviction) else 0


def holds_few_pages(eviction: Any) -> None:
    release = eviction.release
    eviction.release = lambda page: release(page) if len(eviction) < 1000 else None


@pytest.mark.parametrize(
    "broken", [ignores_reuse, gives_a_page_up_twice, makes_a_page_up_when_empty, holds_few_pages]
)
def test_a_broken_one_fails(catches: Catches, broken: Callable[[Any], None]) -> None:
    assert catches(EvictionConformance, Kind.EVICTION, "lru", broken)


# The same for what an eviction may do beyond that.


def locks_what_has_priority(eviction: Any) -> None:
    victim = eviction.victim

    def broken() -> int:
        if eviction._count and min(eviction._order)[0] > 50:
            raise LookupError
        return int(victim())

    eviction.victim = broken


def ignores_pins(eviction: Any) -> None:
    eviction.pin = lambda page, seconds: None


def pins_a_page_without_those_before_it(eviction: Any) -> None:
    cached = eviction.cached
    eviction.cached = lambda page, origin: cached(page, replace(origin, parent=-1))


def never_takes_a_pin_back(eviction: Any) -> None:
    pin = eviction.pin
    eviction.pin = lambda page, seconds: pin(page, seconds or 3600.0)


def never_unpins(eviction: Any) -> None:
    victim = eviction.victim

    def broken() -> int:
        before = list(eviction._pinned_until)
        page = int(victim())
        eviction._pinned_until = before
        return page

    eviction.victim = broken


@pytest.mark.parametrize(
    "broken",
    [
        locks_what_has_priority,
        ignores_pins,
        pins_a_page_without_those_before_it,
        never_takes_a_pin_back,
        never_unpins,
    ],
)
def test_a_broken_wish_fails(catches: Catches, broken: Callable[[Any], None]) -> None:
    assert catches(EvictionConformance, Kind.EVICTION, "retention", broken)


def gives_up_only_ends_of_prefixes(eviction: Any) -> None:
    victim = eviction.victim

    def broken() -> int:
        if not any(eviction._lineage.is_leaf(page) for _, _, page in eviction._order):
            raise LookupError
        return int(victim())

    eviction.victim = broken


def test_one_that_waits_for_ends_of_prefixes_fails(catches: Catches) -> None:
    assert catches(EvictionConformance, Kind.EVICTION, "cost", gives_up_only_ends_of_prefixes)
