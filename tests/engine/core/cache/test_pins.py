"""Pinned prefixes: stay cached while anything else can be evicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import PinPrefix
from gatewayd_engine.process.plugin_faults import RequestRejected
from gatewayd_evict_retention.strategy import Retention

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
KEPT = [300 + i * 7 % 3001 for i in range(96)]
PAGES = 24


def retaining(make_engine: Make, cache: str = "hash") -> Any:
    """A small cache; its pages hold 16 tokens."""
    return make_engine(
        eviction=StrategyChoice("retention"), prefix_cache=StrategyChoice(cache), kv_pages=PAGES
    )


def pin(engine: Any, prompt: list[int], seconds: float, salt: bytes = b"") -> int:
    pinned = engine.core.pin(PinPrefix(1, np.array(prompt, np.int32).tobytes(), seconds, salt))
    assert isinstance(pinned, int)
    return pinned


def fill(engine: Any, count: int) -> None:
    """Other prompts, each of 6 pages, that nobody sends again."""
    for i in range(count):
        engine.generate([3500 + i, *range(20, 114)], max_tokens=1)


def cached(engine: Any, prompt: list[int]) -> int:
    """Tokens that a request finds."""
    (i,) = engine.submit([*prompt, 5], max_tokens=1)
    found = engine.run()[i].admitted.cached_tokens
    assert isinstance(found, int)
    return found


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_a_pinned_prompt_outlives_what_is_newer(make_engine: Make, cache: str) -> None:
    engine = retaining(make_engine, cache)
    engine.generate(KEPT, max_tokens=1)
    assert pin(engine, KEPT, 60) == len(KEPT)
    fill(engine, 12)
    assert cached(engine, KEPT) == len(KEPT)
    # The same without a pin.
    other = retaining(make_engine, cache)
    other.generate(KEPT, max_tokens=1)
    fill(other, 12)
    assert cached(other, KEPT) == 0


def test_a_pin_is_taken_back_alone_or_with_all_others(make_engine: Make) -> None:
    for prompt in (KEPT, []):
        engine = retaining(make_engine)
        engine.generate(KEPT, max_tokens=1)
        assert pin(engine, KEPT, 60) == len(KEPT)
        assert pin(engine, prompt, 0) == 0
        fill(engine, 12)
        assert cached(engine, KEPT) == 0


def test_pins_give_way_rather_than_refuse_a_request(make_engine: Make) -> None:
    engine = retaining(make_engine)
    for first in (1, 2, 3):
        prompt = [first + 1000, *KEPT[1:]]
        engine.generate(prompt, max_tokens=1)
        assert pin(engine, prompt, 60) == len(prompt)
    long = [7] * (PAGES * 16 - 20)
    assert len(engine.generate(long, max_tokens=4, ignore_eos=True)) == 4
    assert cached(engine, [1001, *KEPT[1:]]) < len(KEPT)


def test_only_what_is_cached_is_pinned(make_engine: Make) -> None:
    engine = retaining(make_engine)
    assert pin(engine, KEPT, 60) == 0
    engine.generate(KEPT[:40], max_tokens=1)
    assert pin(engine, KEPT, 60) == 32
    assert pin(engine, KEPT, 60, salt=b"another's") == 0


def test_what_runs_is_pinned_before_it_ends(make_engine: Make) -> None:
    engine = retaining(make_engine)
    engine.submit(KEPT, max_tokens=4, ignore_eos=True)
    engine.step()
    assert pin(engine, KEPT, 60) == len(KEPT)
    engine.run()
    fill(engine, 12)
    assert cached(engine, KEPT) == len(KEPT)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "the eviction strategy in use does not support pins"),
        ({"prefix_cache": None}, "there is no prefix cache"),
    ],
)
def test_where_there_are_no_pins_that_is_said(
    make_engine: Make, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestRejected, match=words):
        pin(make_engine(**fields), KEPT, 60)


def test_an_eviction_that_raises_is_replaced_and_nothing_is_pinned(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Retention, page: int, seconds: float) -> None:
        raise ValueError("no")

    monkeypatch.setattr(Retention, "pin", broken)
    engine = retaining(make_engine)
    engine.generate(KEPT, max_tokens=1)
    with pytest.raises(RequestRejected, match="does not support pins"):
        pin(engine, KEPT, 60)
    assert engine.core.strategies.num_faults == 1
    assert cached(engine, KEPT) == len(KEPT)


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_a_pin_taken_back_leaves_another_prompt_that_begins_alike(
    make_engine: Make, cache: str
) -> None:
    engine = retaining(make_engine, cache)
    other = [*KEPT[:64], *range(10, 42)]
    for prompt in (KEPT, other):
        engine.generate(prompt, max_tokens=1)
        assert pin(engine, prompt, 60) == len(prompt)
    pin(engine, KEPT, 0)
    fill(engine, 12)
    assert cached(engine, other) == len(other)
