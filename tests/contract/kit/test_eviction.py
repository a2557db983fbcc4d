"""The kit catches evictions that give up the wrong page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.eviction import EvictionConformance

Verdict = Callable[..., list[str]]


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
def test_a_broken_one_fails(verdict: Verdict, broken: Callable[[Any], None]) -> None:
    assert verdict(EvictionConformance, Kind.EVICTION, "lru", broken)
