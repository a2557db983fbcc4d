"""Prefix cache: what it is asked, how often, and its counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_engine.process.messages import ERROR
from gatewayd_prefix_hash.strategy import HashChain

PROMPT = list(range(100, 180))
Make = Callable[..., Any]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the methods of the cache were called."""
    counted: Counter[str] = Counter()
    for name in ("begin", "match"):
        sound = getattr(HashChain, name)

        def counting(self: Any, *args: Any, name: str = name, sound: Any = sound) -> Any:
            counted[name] += 1
            return sound(self, *args)

        monkeypatch.setattr(HashChain, name, counting)
    return counted


def test_a_prompt_is_hashed_once_for_all_its_answers(
    make_engine: Make, calls: Counter[str]
) -> None:
    engine = make_engine()
    ids = engine.submit(PROMPT, n=4, max_tokens=40, temperature=1.0, seed=3, ignore_eos=True)
    first = [engine.run()[i].tokens for i in ids]
    assert calls["begin"] == 1
    # What each of them generated was noted in a trail of its own.
    for tokens in first:
        engine.submit(PROMPT + tokens, max_tokens=1)
        (*_, last) = engine.run()
        assert engine.answers[last].admitted.cached_tokens == 80 + 39


def test_one_who_waits_is_looked_up_again_only_when_the_cache_has_grown(
    make_engine: Make, calls: Counter[str]
) -> None:
    engine = make_engine(max_running=1)
    engine.submit(PROMPT[:40], max_tokens=30, ignore_eos=True)
    engine.step()
    (other,) = engine.submit(PROMPT, max_tokens=2, ignore_eos=True)
    before = calls["match"]
    while engine.answers[other].admitted is None:
        engine.step()
    assert calls["match"] - before == 1
    assert engine.answers[other].admitted.cached_tokens == 40
    engine.run()


def test_whoever_finds_no_pages_is_not_looked_up_in_every_step(
    make_engine: Make, calls: Counter[str]
) -> None:
    engine = make_engine(kv_pages=8)
    engine.submit(PROMPT[:40], max_tokens=60, ignore_eos=True)
    engine.step()
    (other,) = engine.submit(PROMPT[::-1], max_tokens=2, ignore_eos=True)
    before, steps = calls["match"], engine.core.stats.step
    while engine.answers[other].admitted is None:
        engine.step()
    waited = engine.core.stats.step - steps
    assert waited > 50
    # Once, and once more for each page that the other one filled meanwhile, and left.
    assert calls["match"] - before <= 1 + 60 // 16 + 1 + 1
    engine.run()


def test_each_request_is_counted_once(make_engine: Make) -> None:
    engine = make_engine(page_size=4, kv_pages=60, max_running=8)
    for i in range(6):
        engine.submit([i + 2, *PROMPT[:39]], n=2, max_tokens=40, ignore_eos=True)
    engine.run()
    stats = engine.core.stats
    assert stats.preemptions > 0
    assert (stats.prefix_queries, stats.prefix_hits) == (6 * 40, 0)
    engine.submit([7, *PROMPT[:39]], n=3, max_tokens=40, ignore_eos=True)
    cached = engine.run()[12].admitted.cached_tokens
    stats = engine.core.stats
    assert (stats.prefix_queries, stats.prefix_hits) == (7 * 40, cached)


def test_an_answer_that_takes_over_its_request_is_not_another_one(make_engine: Make) -> None:
    engine = make_engine(max_batch_tokens=16)
    ids = engine.submit(PROMPT, n=2, max_tokens=4, ignore_eos=True)
    engine.step()
    engine.core.abort(ids[:1])
    engine.run()
    assert engine.core.stats.prefix_queries == 80


@pytest.mark.usefixtures("depth")
def test_the_page_that_a_sequence_leaves_filled_in_part_is_found(make_engine: Make) -> None:
    engine = make_engine()
    engine.generate(PROMPT[:39], max_tokens=1)
    first = engine.generate(PROMPT[:44], max_tokens=20, ignore_eos=True)
    assert engine.answers[1].admitted.cached_tokens == 39
    # One goes on from it in another way, and writes to a copy.
    engine.generate([*PROMPT[:37], *[9] * 9], max_tokens=9, ignore_eos=True)
    assert engine.answers[2].admitted.cached_tokens == 37
    assert engine.generate(PROMPT[:44], max_tokens=20, ignore_eos=True) == first
    # The first answer has filled the page meanwhile.
    assert engine.answers[3].admitted.cached_tokens == 43
    alone = make_engine(prefix_cache=None)
    assert alone.generate(PROMPT[:44], max_tokens=20, ignore_eos=True) == first
    engine.core.check()


def test_what_is_left_behind_an_evicted_page_is_not_found(make_engine: Make) -> None:
    engine = make_engine(kv_pages=8)
    engine.generate(PROMPT[:40], max_tokens=1)
    # It needs seven pages: of the three, the one given back last stays, which is the first.
    engine.generate(PROMPT[::-1][:70], max_tokens=40, ignore_eos=True)
    engine.generate(PROMPT[:40], max_tokens=1)
    assert engine.answers[2].admitted.cached_tokens == 16
    engine.core.check()


def test_one_that_failed_leaves_nothing(make_engine: Make) -> None:
    engine = make_engine()
    (failing,) = engine.submit(PROMPT[:39], max_tokens=30, ignore_eos=True)
    engine.step()
    engine.core._lifecycle.finish(engine.core._queue.find(failing), ERROR, error=("x", "x"))
    engine.generate(PROMPT[:39], max_tokens=1)
    assert engine.answers[1].admitted.cached_tokens == 32


@pytest.mark.parametrize("salt", [b"", b"another"])
def test_a_page_behind_one_that_was_evicted_is_not_found_behind_its_successor(
    make_engine: Make, salt: bytes
) -> None:
    """A sequence's own copy of a cached page is free, and another's, without notice."""
    engine, prompt = make_engine(), [300 + i for i in range(80)]
    engine.generate(prompt[:48], max_tokens=1)
    pages = engine.core._pages
    of_depth = {pages.origin(page).depth: page for page in range(3)}
    engine.core._placement.prefixes.evict([of_depth[1]])
    # It computes page 1 and what is behind it, while page 2 of the first one is still cached.
    engine.generate(prompt, max_tokens=1)
    engine.core.check()
    # Others fill all pages that are free, then continue with what stood behind a page.
    for first in range(400, 440):
        other = [first + 7 * i % 100 for i in range(16)]
        engine.generate([*other, 5], max_tokens=1, salt=salt)
        for depth in (2, 3, 4):
            told = [*other, *prompt[16 * depth : 16 * depth + 16], 11, 12]
            engine.generate(told, max_tokens=1, salt=salt)
            assert engine.answers[max(engine.answers)].admitted.cached_tokens <= 17
    engine.core.check()


def test_prompts_that_begin_alike_by_chance_copy_nothing(make_engine: Make) -> None:
    engine = make_engine()
    for i in range(5):
        engine.generate([1, 2, 3, *[300 + i] * 30], max_tokens=1)
        assert engine.answers[i].admitted.cached_tokens == 0
    engine.generate([1, 2, 3, 300, *[400] * 30], max_tokens=1)
    assert engine.answers[5].admitted.cached_tokens == 4
