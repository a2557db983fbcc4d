"""Page retention: page origins told to evictions, and requested retention honoured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import SamplingParams, Submit
from gatewayd_engine.process.plugin_faults import RequestRejected
from gatewayd_evict_lru.strategy import Lru
from gatewayd_hooks.caching import PageOrigin
from gatewayd_hooks.strategy import Kind

Make = Callable[..., Any]
PROMPT = list(range(300, 370))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, PageOrigin]]:
    """What ``lru`` would be told if it wanted to know."""
    calls: list[tuple[int, PageOrigin]] = []
    monkeypatch.setattr(
        Lru, "cached", lambda self, page, origin: calls.append((page, origin)), raising=False
    )
    return calls


def test_a_page_is_told_with_the_one_before_it(
    make_engine: Make, told: list[tuple[int, PageOrigin]]
) -> None:
    engine = make_engine()
    engine.submit(PROMPT, salt=b"s", max_tokens=30, ignore_eos=True)
    engine.run()
    # The last one is filled in part.
    assert [origin.depth for _, origin in told] == list(range(7))
    pages = [page for page, _ in told]
    assert [origin.parent for _, origin in told] == [-1, *pages[:-1]]
    assert {(o.salt, o.priority, o.seconds) for _, o in told} == {(b"s", 50, 0.0)}


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_the_page_before_is_the_one_that_is_cached(
    make_engine: Make, told: list[tuple[int, PageOrigin]], cache: str
) -> None:
    engine = make_engine(prefix_cache=StrategyChoice(cache), max_batch_tokens=64)
    # Two sequences generate the same tokens, one a step behind the other: until that one ends its
    # pages are what is cached, and what the other has of its own is not.
    for max_tokens in (20, 60):
        engine.submit(PROMPT[:20], max_tokens=max_tokens, ignore_eos=True)
        engine.step()
    engine.run()
    origins = dict(told)
    # The last of each is filled in part.
    assert [origin.depth for _, origin in told] == [0, 1, 2, 2, 3, 4]
    for page, origin in told:
        if origin.depth:
            assert origins[origin.parent].depth == origin.depth - 1, (page, origin)


def test_whoever_shares_pages_may_want_them_kept_longer(
    make_engine: Make, told: list[tuple[int, PageOrigin]]
) -> None:
    engine = make_engine()
    engine.generate(PROMPT, max_tokens=1)
    del told[:]
    submit(engine, PROMPT, retention=(80, 20.0))
    engine.run()
    assert [(o.depth, o.priority, o.seconds) for _, o in told] == [
        (depth, 80, 20.0) for depth in range(5)
    ]
    del told[:]
    submit(engine, PROMPT, retention=(60, 90.0))
    engine.run()
    assert [(o.depth, o.priority, o.seconds) for _, o in told] == [
        (depth, 80, 90.0) for depth in range(5)
    ]
    del told[:]
    submit(engine, PROMPT, retention=(10, 0.0))
    engine.run()
    assert not told


def submit(engine: Any, prompt: list[int], retention: tuple[int, float]) -> int:
    (i,) = engine.submit(prompt, max_tokens=1, retention=retention)
    return int(i)


@pytest.mark.parametrize("retention", [(101, 1.0), (-1, 1.0), (50, -1.0), (50, float("nan"))])
def test_a_wish_out_of_bounds_is_refused(make_engine: Make, retention: tuple[int, float]) -> None:
    params = SamplingParams(max_tokens=1)
    prompt = np.array(PROMPT, np.int32).tobytes()
    with pytest.raises(RequestRejected, match="retention"):
        make_engine().core.submit(Submit([1], prompt, params, retention=retention))


@pytest.mark.parametrize("eviction", ["lru", "lfu", "cost", "retention"])
def test_a_retained_prompt_outlives_many_others_and_locks_nothing(
    make_engine: Make, eviction: str
) -> None:
    engine = make_engine(kv_pages=24, eviction=StrategyChoice(eviction))
    submit(engine, PROMPT, retention=(100, 3600.0))
    for first in range(2, 12):
        submit(engine, [first] * 70, retention=(50, 0.0))
        engine.run()
        engine.core.check()
    again = submit(engine, PROMPT, retention=(50, 0.0))
    cached = engine.run()[again].admitted.cached_tokens
    assert cached == (69 if eviction == "retention" else 0)
    # All pages for one who needs them all.
    (large,) = engine.submit([7] * 300, max_tokens=24 * 16 - 300, ignore_eos=True)
    assert len(engine.run()[large].tokens) == 24 * 16 - 300


def test_another_eviction_learns_what_was_told_before(
    make_engine: Make, told: list[tuple[int, PageOrigin]]
) -> None:
    engine = make_engine()
    engine.generate(PROMPT, max_tokens=30, ignore_eos=True)
    before = list(told)
    assert len(before) == 7
    del told[:]
    engine.core.strategies.reset(Kind.EVICTION)
    engine.core._placement.rebuild(Kind.EVICTION)
    assert told == before


def test_an_eviction_that_cannot_be_told_is_a_fault_of_its_own(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = make_engine().generate(PROMPT, max_tokens=30, ignore_eos=True)
    engine = make_engine(eviction=StrategyChoice("retention"))
    retention = engine.core.strategies.bound[Kind.EVICTION]

    def fails(self: Any, page: int, origin: PageOrigin) -> None:
        raise RuntimeError("never mind")

    monkeypatch.setattr(type(retention), "cached", fails)
    engine.core.strategies.reset(Kind.EVICTION)
    engine.core._placement.rebuild(Kind.EVICTION)
    assert engine.generate(PROMPT, max_tokens=30, ignore_eos=True) == wanted
    assert engine.core.stats.faults == 3
    engine.core.check()
