"""Background plugin opening: slow or hung ones delay no step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.core.hot_swap import EngineSwapRefused
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import Swapped, SwapStrategy
from gatewayd_engine.process.plugin_opener import NotOpened, Opening
from gatewayd_hooks.host.marker import Marker
from gatewayd_hooks.strategy import Kind
from tests.engine.core.hot_swaps import swap
from tests.engine.core.prompts import PROMPTS, answers
from tests.engine.core.tiered_engines import disk

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
LFU = "gatewayd_evict_lfu.strategy.Lfu"
NGRAM = "gatewayd_draft_ngram.strategy.Ngram"
LIMIT = 0.3


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    until = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() == before


def begin(engine: Any, kind: Kind, *choices: StrategyChoice, **fields: Any) -> None:
    engine.core.swaps.start(SwapStrategy(1, kind.value, list(choices), **fields))


def settled(engine: Any) -> list[Swapped]:
    until = time.monotonic() + 30
    while not (found := engine.core.swaps.complete_ready()) and time.monotonic() < until:
        time.sleep(0.001)
    return list(found)


def test_requests_get_tokens_in_every_step_while_a_drafter_is_opened(
    make_engine: Make, undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_open = threading.Event()
    monkeypatch.setattr(f"{NGRAM}.open", lambda self, resources: may_open.wait())
    engine = make_engine()
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in PROMPTS]
    engine.step()
    begin(engine, Kind.DRAFTER, StrategyChoice("ngram"))
    for _ in range(6):
        assert engine.core.swaps.complete_ready() == []
        assert set(np.frombuffer(engine.step().sequences, np.int64).tolist()) == set(ids)
    assert engine.core.strategies.bound.get(Kind.DRAFTER) is None
    may_open.set()
    assert settled(engine) == [Swapped(1)]
    assert type(engine.core.strategies.bound[Kind.DRAFTER]).__name__ == "Ngram"
    engine.run()
    assert [engine.answers[i].tokens for i in ids] == undisturbed
    (row,) = [row for row in engine.core.strategies.report() if row.name == "ngram"]
    assert row.longest > 0


def sleeps(may_end: threading.Event) -> None:
    assert may_end.wait(60)


def spins(may_end: threading.Event) -> None:
    while not may_end.is_set():
        pass


@pytest.mark.parametrize("broken", [sleeps, spins])
def test_one_that_does_not_come_back_is_refused_by_name_and_holds_nobody(
    make_engine: Make,
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    broken: Any,
) -> None:
    may_end, ended, closed = threading.Event(), threading.Event(), threading.Event()

    def opens(self: Any, resources: Any) -> None:
        broken(may_end)
        ended.set()

    monkeypatch.setattr(f"{LFU}.open", opens)
    monkeypatch.setattr(f"{LFU}.close", lambda self: closed.set())
    engine = make_engine(load_seconds=LIMIT)
    old = engine.core.strategies.bound[Kind.EVICTION]
    began = time.monotonic()
    begin(engine, Kind.EVICTION, StrategyChoice("lfu"))
    assert answers(engine) == undisturbed
    (refusal,) = settled(engine)
    assert refusal.error == "eviction.lfu did not return from open within 0.3 s"
    assert time.monotonic() - began >= LIMIT
    assert engine.core.strategies.bound[Kind.EVICTION] is old
    assert not ended.is_set()
    may_end.set()
    assert closed.wait(30)  # when it comes back after all
    assert ended.is_set()  # and nothing was raised in it
    assert engine.core.stats.faults == 0
    assert swap(engine, Kind.EVICTION, StrategyChoice("lru"))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_one_that_wants_to_end_the_process_is_refused(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def leave(self: Any, resources: Any) -> None:
        raise error

    monkeypatch.setattr(f"{LFU}.open", leave)
    engine = make_engine()
    with pytest.raises(EngineSwapRefused, match=r"eviction\.lfu raised .* in open"):
        swap(engine, Kind.EVICTION, StrategyChoice("lfu"))


def test_of_a_chain_that_is_refused_all_that_was_opened_is_closed(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    bias = type(engine.core.strategies.chain.links[1].strategy)
    swap(engine, Kind.LOGITS_PROCESSOR, StrategyChoice("penalties"))
    closed: list[Any] = []
    with monkeypatch.context() as context:
        context.setattr(bias, "close", lambda self: closed.append(self))
        with pytest.raises(EngineSwapRefused):
            swap(engine, Kind.LOGITS_PROCESSOR, StrategyChoice("bias"), StrategyChoice("x"))
    assert [type(one) for one in closed] == [bias]
    assert engine.core.strategies.chain.names == ["penalties"]


def test_swaps_are_made_in_the_order_in_which_they_were_asked_for(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_open = threading.Event()
    monkeypatch.setattr(f"{LFU}.open", lambda self, resources: may_open.wait())
    engine = make_engine()
    begin(engine, Kind.EVICTION, StrategyChoice("lfu"))
    begin(engine, Kind.EVICTION, StrategyChoice("nobody"))
    begin(engine, Kind.EVICTION, StrategyChoice("cost"), holds=True)
    assert engine.core.swaps.complete_ready() == []
    assert engine.core.swaps.holds
    may_open.set()
    found: list[Swapped] = []
    while engine.core.swaps.is_busy:
        found += settled(engine)
    assert [bool(answer.error) for answer in found] == [False, True, False]
    assert engine.core.strategies.names["eviction"] == "cost"
    assert not engine.core.swaps.holds


def test_the_daemon_can_read_what_is_opened_beside_the_steps(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = Marker.shared()
    opens, may_open = threading.Event(), threading.Event()

    def waits(self: Any, resources: Any) -> None:
        opens.set()
        may_open.wait()

    monkeypatch.setattr(f"{NGRAM}.open", waits)
    engine = make_engine(marker=marker.path)
    begin(engine, Kind.DRAFTER, StrategyChoice("ngram"))
    engine.core.swaps.complete_ready()
    assert opens.wait(30)
    engine.generate(PROMPTS[0], max_tokens=2)
    assert marker.running() == "drafter.ngram"
    may_open.set()
    assert settled(engine) == [Swapped(1)]
    assert marker.running() is None
    marker.close()


def test_an_engine_that_ends_waits_for_no_opening(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = threading.Event()
    may_end, ended = threading.Event(), threading.Event()

    def opens(self: Any, resources: Any) -> None:
        while not may_end.is_set():
            pass
        ended.set()

    monkeypatch.setattr(f"{LFU}.open", opens)
    monkeypatch.setattr(f"{LFU}.close", lambda self: closed.set())
    engine = make_engine()
    begin(engine, Kind.EVICTION, StrategyChoice("lfu"))
    engine.core.swaps.complete_ready()
    engine.core.swaps.close(0.1)
    assert not ended.is_set()
    assert not engine.core.swaps.is_busy
    may_end.set()
    assert closed.wait(30)


def test_the_mark_is_gone_before_it_is_over() -> None:
    """What is opened next has its own mark from then on."""
    seen: list[tuple[str | None, bool]] = []
    may_begin = threading.Event()

    def make(choice: StrategyChoice) -> Any:
        may_begin.wait()

    def mark(name: str | None) -> None:
        time.sleep(0.02)
        seen.append((name, opening.is_over))

    opening = Opening(Kind.DRAFTER, [StrategyChoice("a")], make, mark, 5.0)
    may_begin.set()
    while not opening.is_over:
        time.sleep(0.001)
    assert seen == [("a", False), (None, False)]
    opening.wait(30.0)


def test_what_is_given_up_marks_nothing_any_more() -> None:
    marks: list[str | None] = []
    may_open = threading.Event()

    class Some:
        def close(self) -> None:
            closed.set()

    def make(choice: StrategyChoice) -> Any:
        may_open.wait()
        return Some()

    closed = threading.Event()
    choices = [StrategyChoice("a"), StrategyChoice("b")]
    opening = Opening(Kind.LOGITS_PROCESSOR, choices, make, marks.append, 0.0)
    while not marks:
        time.sleep(0.001)
    with pytest.raises(NotOpened, match=r"logits_processor\.a did not return"):
        opening.result()
    may_open.set()
    assert closed.wait(30)
    opening.wait(30.0)
    assert marks == ["a", None]


def test_a_disk_whose_opening_was_given_up_can_be_opened_again(
    make_engine: Make, tmp_path: Path
) -> None:
    engine = make_engine()
    for _ in range(20):
        begin(engine, Kind.KV_TIER, disk(tmp_path))
        engine.core.swaps.complete_ready()
        engine.core.swaps.close(5.0)
    swap(engine, Kind.KV_TIER, disk(tmp_path))
    assert engine.core.strategies.tiers.names == ["disk"]
