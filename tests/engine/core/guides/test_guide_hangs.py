"""Hanging guides: compilers and masks that do not return, beside or within a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from gatewayd_engine.sampling.guides import matchers
from gatewayd_engine.sampling.guides.cost_limits import GrammarCostLimit
from gatewayd_hooks.host.watchdog import Watchdog
from tests.engine.core.fake_guide import (
    LISTS,
    Listed,
    ListedMatcher,
    choice_of,
    text_of,
    with_guide,
)
from tests.engine.core.prompts import PROMPTS

Make = Callable[..., Any]
LIMIT, PATIENCE = 0.2, 60.0


@pytest.fixture
def watched() -> Iterator[Callable[[Any], Any]]:
    """Let a watchdog look at an engine, as its process does."""
    dogs: list[Watchdog] = []

    def watch(engine: Any) -> Any:
        dogs.append(Watchdog(engine.core.strategies.plugin_times, PATIENCE))
        dogs[-1].arm()
        engine.dog = dogs[-1]
        return engine

    yield watch
    for dog in dogs:
        dog.disarm()


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forced takes a step for each token; this guide's masks are quick ones."""
    monkeypatch.setattr(ListedMatcher, "forced", lambda self: ())
    monkeypatch.setattr(matchers, "_QUICK", 0.3)
    monkeypatch.setattr(matchers, "GrammarCostLimit", partial(GrammarCostLimit, mask_seconds=0.3))


def submit(engine: Any, at: int, strings: tuple[str, ...] = LISTS[1]) -> int:
    (sequence,) = engine.submit(PROMPTS[at], max_tokens=40, guide=choice_of(*strings))
    return int(sequence)


def test_masks_that_never_come_fail_who_waits_for_them(make_engine: Make) -> None:
    guide, forever = Listed(), threading.Event()
    engine = with_guide(make_engine(strategy_hang_seconds=1.0), guide)

    def called(name: str, matcher: Any) -> None:
        if name == "fill" and threading.current_thread() is not threading.main_thread():
            forever.wait(60)

    bad = submit(engine, 0)
    free = engine.submit(PROMPTS[1], max_tokens=10, ignore_eos=True)[0]
    guide.called = called
    began = time.monotonic()
    done = engine.run()
    assert done[bad].finished.error[0] == "strategy_error"
    assert len(done[free].tokens) == 10
    assert time.monotonic() - began < 30
    forever.set()
    guide.called = lambda name, matcher: None
    again = submit(engine, 0)
    assert text_of(engine.run()[again].tokens) in LISTS[1]


@pytest.mark.usefixtures("one_by_one")
def test_quick_masks_are_filled_within_the_step(make_engine: Make) -> None:
    guide, is_main = Listed(), []
    engine = with_guide(make_engine(), guide)
    slow = 0.0

    def called(name: str, matcher: Any) -> None:
        if name == "fill":
            is_main.append(threading.current_thread() is threading.main_thread())
            time.sleep(slow)

    guide.called = called
    sequence = submit(engine, 0)
    while len(is_main) < 6:
        engine.step()
    assert not is_main[0], "nobody knows yet how long it takes"
    assert all(is_main[2:])
    slow = 0.45
    engine.step()
    is_main.clear()
    engine.step()
    assert is_main == [False], "the layers compute meanwhile"
    assert text_of(engine.run()[sequence].tokens) in LISTS[1]


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize(("method", "lost"), [("fill", 2), ("accept", 1)])
def test_within_a_step_it_is_interrupted(
    make_engine: Make, watched: Callable[[Any], Any], method: str, lost: int
) -> None:
    """Masks are asked for together; of tokens it is known whose is being taken."""
    guide = Listed()
    engine = watched(with_guide(make_engine(), guide))
    guided = [submit(engine, i) for i in range(2)]
    free = engine.submit(PROMPTS[2], max_tokens=16, ignore_eos=True)[0]
    for _ in range(3):
        engine.step()
    asked: list[threading.Thread] = []

    def called(name: str, matcher: Any) -> None:
        if name == method and not asked:
            asked.append(threading.current_thread())
            engine.dog.arm(LIMIT)  # it is in no hurry with what a busy machine delays
            try:
                time.sleep(120)
            finally:
                engine.dog.arm()

    guide.called = called
    began = time.monotonic()
    done = engine.run()
    assert time.monotonic() - began < PATIENCE / 2
    assert asked == [threading.main_thread()]
    ends = [done[one] for one in guided]
    assert [end.finished.error[0] for end in ends if end.finished.error] == [
        "strategy_error"
    ] * lost
    assert all(text_of(end.tokens) in LISTS[1] for end in ends if not end.finished.error)
    assert len(done[free].tokens) == 16
    assert engine.core.stats.faults == 1
    again = submit(engine, 0)
    assert text_of(engine.run()[again].tokens) in LISTS[1]
