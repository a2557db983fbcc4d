"""SLO windows: equal a list of all requests; each verdict by itself."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gatewayd.config.slo import ClassTargets, SloTable
from gatewayd.metrics.slo import SloCollector, judge
from gatewayd.metrics.slo_windows import BUCKET_SECONDS, NUM_BUCKETS, SloWindows
from tests.gatewayd.tracing.test_latency_record import latency_record


class Clock:
    """Seconds that pass when they are told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("seed", range(5))
def test_windows_count_what_ended_in_them_and_hold_no_more_than_six_hours(seed: int) -> None:
    random_, clock = random.Random(seed), Clock()
    clock.now = random_.uniform(0, 1e6)
    windows, ended = SloWindows(clock), []
    for _ in range(2000):
        clock.now += random_.choice([0, 0, 1, 7, 60, 300, 9000 * random_.random()])
        is_good = random_.random() < 0.7
        windows.add(is_good=is_good)
        ended.append((clock.now // BUCKET_SECONDS, is_good))
        seconds = random_.choice([300, 3600, 21600])
        first = clock.now // BUCKET_SECONDS - min(NUM_BUCKETS, seconds / BUCKET_SECONDS + 1) + 1
        inside = [good for at, good in ended if at >= first]
        assert windows.bad_ratio(seconds) == pytest.approx(inside.count(False) / len(inside))
    assert windows.good + windows.bad == 2000
    clock.now += 7 * 3600
    assert windows.bad_ratio(21600) == 0.0


TARGETS = ClassTargets(ttft_ms=1500, tpot_ms=600, e2e_ms=6500)


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({}, {"ttft": False, "tpot": True, "e2e": True, "all": False}),
        ({"first": 11.0}, {"ttft": True, "tpot": False, "e2e": True, "all": False}),
        ({"first": 11.5}, {"ttft": True, "tpot": False, "e2e": True, "all": False}),
        ({"first": 11.7}, {"ttft": False, "tpot": True, "e2e": True, "all": False}),
        (
            {"first": 11.5, "last": 13.5},
            {"ttft": True, "tpot": True, "e2e": True, "all": True},
        ),
        ({"outcome": "error"}, {"ttft": False, "tpot": False, "e2e": False, "all": False}),
        # It ended without a token: that took no longer than it may.
        ({"first": None, "last": None}, {"e2e": True, "all": True}),
        # The client left: before it got anything too late, after it, or in time.
        ({"outcome": "abort", "first": None, "last": None}, {"ttft": False, "all": False}),
        ({"outcome": "abort", "first": None, "last": None, "end": 11.0}, {}),
        (
            {"outcome": "abort", "first": 11.2, "last": 11.2, "end": 12.0},
            {"ttft": True, "tpot": True},
        ),
        (
            {"outcome": "abort", "first": 11.2, "last": 11.3, "end": 17.0},
            {"ttft": True, "tpot": True, "e2e": False, "all": False},
        ),
    ],
)
def test_a_request_is_judged_by_what_its_class_is_promised(
    fields: dict[str, Any], verdict: dict[str, bool]
) -> None:
    assert judge(latency_record(**fields), TARGETS) == verdict


def test_without_a_promise_all_that_did_not_fail_is_good() -> None:
    none = ClassTargets()
    assert judge(latency_record(), none) == {"all": True}
    assert judge(latency_record(outcome="error"), none) == {"all": False}
    assert judge(latency_record(outcome="abort"), none) == {}


def test_the_burn_rate_is_the_bad_share_over_the_share_that_may_be_bad() -> None:
    clock = Clock()
    table = SloTable(batch=ClassTargets(e2e_ms=5000, objective=0.9))
    collector = SloCollector(table, "m", clock)
    for end in (14.0, 14.0, 14.0, 99.0):
        collector.ended(latency_record(priority=2, end=end))
    clock.now += 2000
    for _ in range(4):
        collector.ended(latency_record(priority=2, end=14.0))
    found = {
        (sample.name, *[v for k, v in sample.labels.items() if k != "model_name"]): sample.value
        for family in collector.collect()
        for sample in family.samples
    }
    assert found["gatewayd_slo_burn_rate", "batch", "e2e", "5m"] == 0
    assert found["gatewayd_slo_burn_rate", "batch", "e2e", "1h"] == pytest.approx(1 / 8 / 0.1)
    assert found["gatewayd_slo_good_total", "batch", "all"] == 7
    assert found["gatewayd_slo_bad_total", "batch", "e2e"] == 1
    assert found["gatewayd_slo_target_seconds", "batch", "e2e"] == 5
    assert found["gatewayd_slo_objective", "batch"] == 0.9
    assert ("gatewayd_slo_good_total", "batch", "ttft") not in found
