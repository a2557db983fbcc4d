"""Timeline of a choice: from engine frames at known times."""

from __future__ import annotations

import random

import msgspec
import pytest

from gatewayd.tracing.timeline import (
    NO_ENGINE,
    SENT,
    CauseInterval,
    StepTimeTotals,
    Timeline,
    Totals,
)
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.messages import StepOutput
from gatewayd_engine.process.time_causes import Cause


def step(number: int, *, crowd: float = 0.0, plugins: dict[str, float] | None = None) -> StepOutput:
    return StepOutput(EngineStats(step=number), crowd=crowd, plugins=plugins or {})


def test_what_an_engine_tells_speaks_of_the_time_since_its_step_before() -> None:
    pace, timeline = StepTimeTotals(), Timeline(10.0)
    pace.record_step(step(1), 9.0)
    timeline.sent(10.5, pace)
    pace.record_step(step(2), 11.0)  # it was underway when this was sent, and tells nothing of it
    pace.record_step(step(3), 12.0)
    timeline.on_step(Cause.PAGES, 0.0)
    pace.record_step(step(4), 15.0)
    pace.record_step(step(5, crowd=1.0), 16.0)
    timeline.on_step(Cause.PREFILL, 0.75)
    pace.record_step(step(6), 17.0)
    timeline.on_step(Cause.DECODE, 0.0)
    pace.record_step(step(7, crowd=0.25, plugins={"scheduler.a": 0.15, "drafter.b": 0.05}), 18.0)
    timeline.stop(18.5)
    *before, last = timeline.intervals(99.0)
    assert before == [
        CauseInterval(NO_ENGINE, 10.0, 0.5),
        CauseInterval(Cause.TURN, 10.5, 0.5),
        CauseInterval(Cause.PAGES, 11.0, 4.0),
        CauseInterval(Cause.PREFILL, 15.0, 1.0, others=0.25),
    ]
    *figures, shares, strategy = msgspec.structs.astuple(last)
    assert figures == pytest.approx([Cause.DECODE, 16.0, 2.5, 0.2, 0.2])
    assert dict(shares) == pytest.approx({"scheduler.a": 0.15, "drafter.b": 0.05})
    assert strategy == ""


def test_a_heartbeat_is_no_step() -> None:
    pace, timeline = StepTimeTotals(), Timeline(0.0)
    timeline.sent(0.0, pace)
    pace.record_step(step(1), 1.0)
    timeline.on_step(Cause.PREFILL, 1.0)
    pace.record_step(step(1), 5.0)
    assert (pace.at, pace.before) == (1.0, (0.0, Totals()))
    pace.record_step(step(2), 6.0)
    timeline.on_step(Cause.DECODE, 0.0)
    assert timeline.intervals(7.0) == [
        CauseInterval(Cause.PREFILL, 0.0, 1.0),
        CauseInterval(Cause.DECODE, 1.0, 6.0),
    ]


def test_one_that_follows_another_waits_for_its_prompt() -> None:
    pace, timeline = StepTimeTotals(), Timeline(0.0)
    timeline.sent(0.0, pace, follows=True)
    pace.record_step(step(1), 1.0)
    pace.record_step(step(2), 2.0)
    timeline.on_step(Cause.PREFILL, 1.0)
    assert timeline.intervals(2.0)[0] == CauseInterval(Cause.LEADER, 0.0, 1.0)


def test_the_time_at_a_lost_engine_stays_and_what_is_told_after_the_end_changes_nothing() -> None:
    pace, timeline = StepTimeTotals(), Timeline(0.0)
    timeline.sent(0.0, pace)
    pace.record_step(step(1), 1.0)
    timeline.on_step(Cause.DECODE, 0.0)
    timeline.lost(3.0)
    timeline.sent(4.0, StepTimeTotals())
    timeline.stop(6.0)
    timeline.on_step(Cause.PAGES, 0.0)
    timeline.lost(8.0)
    timeline.stop(9.0)
    assert timeline.end == 6.0
    assert timeline.intervals(9.0) == [
        CauseInterval(Cause.DECODE, 0.0, 3.0),
        CauseInterval(NO_ENGINE, 3.0, 1.0),
        CauseInterval(SENT, 4.0, 2.0),
    ]


def random_plugins(random_: random.Random) -> dict[str, float]:
    return {name: random_.uniform(-0.2, 0.5) for name in "abc" if random_.random() < 0.5}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_told_all_of_its_time_is_in_its_stretches(seed: int) -> None:
    random_ = random.Random(seed)
    now, pace = 100.0, StepTimeTotals()
    timeline = Timeline(now)
    for number in range(random_.choice([5, 50, 500])):
        now += random_.random()
        match random_.randrange(8):
            case 0:
                timeline.lost(now)
            case 1:
                timeline.sent(now, pace, follows=random_.random() < 0.5)
            case _:
                told = step(number, crowd=random_.uniform(-1, 2), plugins=random_plugins(random_))
                pace.record_step(told, now)
                timeline.on_step(random_.choice(list(Cause)), random_.uniform(-1, 2))
    found = timeline.intervals(now)
    assert sum(one.seconds for one in found) == pytest.approx(now - 100.0, abs=1e-9)
    assert all(one.others + one.plugins <= one.seconds + 1e-9 for one in found)
    assert all(min(one.seconds, one.others, one.plugins) >= 0 for one in found)
    for one in found:
        assert sum(told for _, told in one.shares) == pytest.approx(one.plugins, abs=1e-9)
    assert len(found) <= 48 + len(Cause) + 3
