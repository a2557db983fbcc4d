"""Strategy time budgets: strategies that are slow themselves are replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.strategy import Kind
from gatewayd_logits_bias.strategy import Bias
from gatewayd_sched_fcfs.strategy import Fcfs
from gatewayd_sched_priority.strategy import WeightedClasses
from tests.clock import Clock
from tests.engine.core.prompts import PROMPTS, answers

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
PRIORITY = {"scheduler": StrategyChoice("priority"), "fault_limit": 2}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("gatewayd_hooks.host.plugin_times.time", clock)
    return clock


def slow_model(engine: Any, clock: Clock, seconds: float) -> Any:
    engine.core._runner.run = clock.before(engine.core._runner.run, seconds)
    return engine


def states(engine: Any) -> dict[str, str]:
    return {row.name: row.state for row in engine.core.strategies.report()}


def test_a_strategy_that_takes_most_of_its_steps_is_quarantined(
    make_engine: Make,
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    clock: Clock,
) -> None:
    monkeypatch.setattr(WeightedClasses, "plan", clock.before(WeightedClasses.plan, 0.2))
    engine = slow_model(make_engine(**PRIORITY), clock, 0.1)
    for _ in range(4):
        assert answers(engine) == undisturbed
    assert engine.core.stats.faults == 2
    assert "priority took 200 of the 300 ms of a step" in caplog.text
    assert states(engine)["priority"] == "quarantined"
    assert states(engine)["fcfs"] == "active"


def test_on_a_slow_machine_nobody_is_quarantined(
    make_engine: Make,
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
) -> None:
    # Every one of them is beyond its budget of 50 ms, and the model is slower still.
    monkeypatch.setattr(WeightedClasses, "plan", clock.before(WeightedClasses.plan, 0.2))
    monkeypatch.setattr(Bias, "apply", clock.before(Bias.apply, 0.4))
    engine = slow_model(make_engine(**PRIORITY), clock, 0.9)
    for _ in range(4):
        ids = [
            engine.submit(p, max_tokens=12, ignore_eos=True, logit_bias=[(9, 0.0)])[0]
            for p in PROMPTS
        ]
        done = engine.run()
        assert [done[i].tokens for i in ids] == undisturbed
    assert engine.core.stats.faults == 0
    assert "quarantined" not in states(engine).values()


def test_a_default_is_kept_however_slow_it_is(
    make_engine: Make,
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    clock: Clock,
) -> None:
    monkeypatch.setattr(Fcfs, "plan", clock.before(Fcfs.plan, 1.0))
    engine = make_engine(fault_limit=1)
    for _ in range(3):
        assert answers(engine) == undisturbed
    assert engine.core.stats.faults == 0
    assert "default strategy exceeded its budget: fcfs took" in caplog.text
    assert engine.core.strategies.configured(Kind.SCHEDULER).name == "fcfs"


def test_a_processor_that_takes_most_of_its_steps_serves_nobody_new(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(Bias, "apply", clock.before(Bias.apply, 0.4))
    engine = slow_model(make_engine(fault_limit=1), clock, 0.1)
    (biased,) = engine.submit(PROMPTS[0], max_tokens=24, ignore_eos=True, logit_bias=[(9, 0.0)])
    engine.run()
    assert len(engine.answers[biased].tokens) == 24
    (biased,) = engine.submit(PROMPTS[0], max_tokens=4, logit_bias=[(9, 0.0)])
    (plain,) = engine.submit(PROMPTS[0], max_tokens=4)
    engine.run()
    assert engine.answers[biased].finished.error is not None
    assert engine.answers[plain].finished.error is None


SPECULATING: dict[str, Any] = {
    "drafter": StrategyChoice("ngram"),
    "spec_controller": StrategyChoice("fixed", {"drafts": 4}),
    "fault_limit": 2,
}


@pytest.mark.parametrize(
    ("path", "method", "name", "kind", "then"),
    [
        ("gatewayd_draft_ngram.strategy", "propose", "ngram", Kind.DRAFTER, None),
        ("gatewayd_spec_fixed.strategy", "decide", "fixed", Kind.SPEC_CONTROLLER, "adaptive"),
    ],
)
def test_a_drafter_or_controller_that_takes_most_of_its_steps_is_quarantined(
    make_engine: Make,
    undisturbed: list[list[int]],
    clock: Clock,
    path: str,
    method: str,
    name: str,
    kind: Kind,
    then: str | None,
) -> None:
    engine = slow_model(make_engine(**SPECULATING), clock, 0.1)
    made = type(engine.core.strategies.bound[kind])
    assert made.__module__ == path
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, method, clock.before(getattr(made, method), 0.2))
        for _ in range(5):
            assert answers(engine) == undisturbed
    assert engine.core.stats.faults == 2
    assert states(engine)[name] == "quarantined"
    chosen = engine.core.strategies.configured(kind)
    assert (None if chosen is None else chosen.name) == then
