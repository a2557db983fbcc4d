"""Hanging strategies: interrupted, named, replaced."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gatewayd_engine.core.hot_swap import EngineSwapRefused
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.host.marker import Marker
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.strategy import Kind
from tests.engine.core.fake_drafters import Guess, seat
from tests.engine.core.hot_swaps import swap
from tests.engine.core.prompts import PROMPTS, answers

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
TIGHT: dict[str, Any] = {"page_size": 4, "kv_pages": 104, "max_batch_tokens": 96}
LIMIT, PATIENCE = 0.15, 60.0
DOGS: list[Watchdog] = []


def hurried(broken: Callable[..., None]) -> Callable[..., None]:
    """The same, soon interrupted; with all that a busy machine delays the watchdog is patient."""

    def call(*args: Any, **kwargs: Any) -> None:
        (dog,) = DOGS
        dog.arm(LIMIT)
        try:
            broken(*args, **kwargs)
        finally:
            dog.arm()

    return call


@hurried
def sleeps(*args: Any, **kwargs: Any) -> None:
    time.sleep(120)


@hurried
def spins(*args: Any, **kwargs: Any) -> None:
    while True:
        pass


@hurried
def swallows(*args: Any, **kwargs: Any) -> None:
    while True:
        try:
            time.sleep(120)
        except Exception:  # noqa: BLE001 - as careless plugins do
            continue


CASES = [
    ("gatewayd_sched_fcfs.strategy.Fcfs", "plan", Kind.SCHEDULER, sleeps),
    ("gatewayd_sched_fcfs.strategy.Fcfs", "plan", Kind.SCHEDULER, swallows),
    ("gatewayd_sched_priority.strategy.WeightedClasses", "enqueue", Kind.SCHEDULER, spins),
    ("gatewayd_prefix_hash.strategy.HashChain", "match", Kind.PREFIX_CACHE, spins),
    ("gatewayd_prefix_hash.strategy.HashChain", "insert", Kind.PREFIX_CACHE, sleeps),
    ("gatewayd_evict_lfu.strategy.Lfu", "victim", Kind.EVICTION, spins),
    ("gatewayd_evict_lfu.strategy.Lfu", "release", Kind.EVICTION, sleeps),
    ("gatewayd_preempt_recompute.strategy.Recompute", "victim", Kind.PREEMPTION, sleeps),
]


@pytest.fixture
def watched() -> Iterator[Callable[[Any], None]]:
    """Let a watchdog look at an engine, as its process does."""

    def watch(engine: Any) -> None:
        DOGS.append(Watchdog(engine.core.strategies.plugin_times, PATIENCE))
        DOGS[-1].arm()

    yield watch
    for dog in DOGS:
        dog.disarm()
    DOGS.clear()


def once(monkeypatch: pytest.MonkeyPatch, path: str, method: str, broken: Any) -> None:
    """Break a method of a class for its first call."""
    module, _, name = path.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    sound = getattr(kind, method)
    left = [1]

    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        if left:
            left.pop()
            return broken(*args, **kwargs)
        return sound(self, *args, **kwargs)

    monkeypatch.setattr(kind, method, first)


@pytest.mark.parametrize(("path", "method", "kind", "broken"), CASES)
def test_a_strategy_that_hangs_is_interrupted_and_loses_nothing(
    make_engine: Make,
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    watched: Callable[[Any], None],
    path: str,
    method: str,
    kind: Kind,
    broken: Any,
) -> None:
    once(monkeypatch, path, method, broken)
    choice = {"WeightedClasses": "priority", "Lfu": "lfu"}.get(path.rpartition(".")[2])
    fields = {kind.value: StrategyChoice(choice)} if choice else {}
    engine = make_engine(**TIGHT, **fields)
    watched(engine)
    began = time.monotonic()
    assert answers(engine) == undisturbed
    assert answers(engine) == undisturbed
    assert time.monotonic() - began < PATIENCE / 2
    assert engine.core.stats.faults == 1
    assert f".{method} hung at " in caplog.text
    assert f"{kind}." in caplog.text


@pytest.mark.usefixtures("depth")
def test_a_processor_that_hangs_fails_those_who_asked_for_it_once(
    make_engine: Make,
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    watched: Callable[[Any], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("gatewayd_logits_bias.strategy.Bias.apply", sleeps)
    engine = make_engine()
    watched(engine)
    ids = [
        engine.submit(p, max_tokens=12, ignore_eos=True, logit_bias=[(9, 0.0)] if k < 4 else [])[0]
        for k, p in enumerate(PROMPTS)
    ]
    began = time.monotonic()
    done = engine.run()
    assert time.monotonic() - began < PATIENCE / 2
    for k, i in enumerate(ids):
        if k < 4:
            assert done[i].finished.error[0] == "strategy_error"
            assert "the logits processor bias failed" in done[i].finished.error[1]
        else:
            assert done[i].tokens == undisturbed[k]
    assert engine.core.stats.faults == 1
    assert "bias.apply hung at " in caplog.text


@pytest.mark.parametrize("broken", [sleeps, spins])
@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (Kind.DRAFTER, "admit"),
        (Kind.DRAFTER, "propose"),
        (Kind.DRAFTER, "learn"),
        (Kind.DRAFTER, "observe"),
        (Kind.SPEC_CONTROLLER, "admit"),
        (Kind.SPEC_CONTROLLER, "decide"),
        (Kind.SPEC_CONTROLLER, "report"),
    ],
)
def test_a_drafter_or_controller_that_hangs_costs_no_token(
    make_engine: Make,
    undisturbed: list[list[int]],
    caplog: pytest.LogCaptureFixture,
    watched: Callable[[Any], None],
    kind: Kind,
    method: str,
    broken: Any,
) -> None:
    engine = make_engine(
        drafter=StrategyChoice("ngram"),
        spec_controller=StrategyChoice("fixed", {"drafts": 4}),
    )
    if kind is Kind.DRAFTER:
        hanging = type("Hanging", (Guess,), {method: broken})([], 0.0, "chain")
    else:
        hanging = engine.core.strategies.bound[kind]
        setattr(hanging, method, broken)
    seat(engine.core.strategies, kind, hanging)
    watched(engine)
    began = time.monotonic()
    assert answers(engine) == undisturbed
    assert time.monotonic() - began < PATIENCE / 2
    assert engine.core.stats.faults == 1
    assert f"scripted.{method} hung at " in caplog.text
    assert f"{kind}." in caplog.text
    # The configured ones are back.
    assert {kind: type(one).__name__ for kind, one in engine.core.strategies.bound.items()}[
        kind
    ] in ("Ngram", "Fixed")


@pytest.mark.parametrize("method", ["close", "export_state", "import_state"])
@pytest.mark.parametrize("broken", [sleeps, spins])
def test_what_a_swap_calls_is_interrupted_and_named(
    make_engine: Make,
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    watched: Callable[[Any], None],
    method: str,
    broken: Any,
) -> None:
    # The one before is asked for its state and closed, the other one is given it.
    is_old = method in ("close", "export_state")
    name = "gatewayd_evict_lru.strategy.Lru" if is_old else "gatewayd_evict_lfu.strategy.Lfu"
    once(monkeypatch, name, method, broken)
    engine = make_engine(**TIGHT)
    began = time.monotonic()
    watched(engine)
    try:
        swap(engine, Kind.EVICTION, StrategyChoice("lfu"))
        said = caplog.text
    except EngineSwapRefused as refusal:
        said = str(refusal)
    took = time.monotonic() - began
    assert f"{'lru' if is_old else 'lfu'}.{method} hung at " in said
    assert LIMIT <= took < PATIENCE / 2
    assert engine.core.strategies.names["eviction"] == ("lfu" if method == "close" else "lru")
    assert answers(engine) == undisturbed
    assert engine.core.stats.faults == 0


def test_an_engine_says_which_strategy_it_opens(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = Marker.shared()
    told = []

    def open_(self: Any, resources: Any) -> None:
        told.append(marker.running())

    monkeypatch.setattr("gatewayd_evict_lfu.strategy.Lfu.open", open_)
    make_engine(eviction=StrategyChoice("lfu"), marker=marker.path)
    assert told == ["eviction.lfu"]
    assert marker.running() is None
    marker.close()
