"""Snapshot parts: equal their sources."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gatewayd.admin.snapshots.latency import LastMinute
from gatewayd.admin.snapshots.samples import Collected
from gatewayd.tracing.latency_record import LatencyRecord
from gatewayd.tracing.recent import RecentLatencyRecords
from tests.gatewayd.fake_fleet import FakeFleet
from tests.gatewayd.gateway import FakeControl
from tests.gatewayd.one_model import model_metrics
from tests.gatewayd.tracing.test_latency_record import latency_record


class Once(Collector):
    """What another has given, again."""

    def __init__(self, collector: Collector) -> None:
        self.metrics = list(collector.collect())

    def collect(self) -> Iterator[Metric]:
        return iter(self.metrics)


def exposed(collector: Collector) -> dict[str, float]:
    """What the text says, read line by line."""
    found = {}
    for line in generate_latest(collector).decode().splitlines():
        key, _, value = line.rpartition(" ")
        if not line.startswith("#") and "_bucket{" not in key and math.isfinite(float(value)):
            found[key] = float(value)
    return found


def test_samples_are_those_of_the_exposition_text() -> None:
    metrics = model_metrics(
        FakeFleet(), "nano", version="9.9", max_model_len=2048, control=FakeControl()
    )
    for number in range(40):
        metrics.record_latency(latency_record(end=16.0 + number))
    metrics.gateway.answered("/x", "GET", 200)
    once = Once(metrics.gateway.registry)
    found = Collected(once.metrics, "nano").samples
    assert found == exposed(once)
    assert len(found) > 100


def test_labels_are_escaped_and_what_is_no_number_is_left_out() -> None:
    registry = CollectorRegistry()
    gauge = Gauge("g", "x", ["b", "a"], registry=registry)
    gauge.labels('quote " and \\', "line\nbreak é").set(2.5)
    gauge.labels("x", "y").set(math.nan)
    Counter("c", "x", registry=registry).inc(3)
    Histogram("h", "x", registry=registry).observe(0.3)
    once = Once(registry)
    found = Collected(once.metrics, "nano").samples
    assert found == exposed(once)
    assert found["c_total"] == 3
    assert len(found) == 6  # the counter and the histogram say when they were made


def test_a_collector_that_fails_costs_what_it_would_have_given() -> None:
    registry = CollectorRegistry()
    Gauge("first", "x", registry=registry).set(1)

    class Broken(Collector):
        def describe(self) -> Iterator[Metric]:
            return iter(())

        def collect(self) -> Iterator[Metric]:
            raise ValueError("no")

    registry.register(Broken())
    collected = Collected(registry.collect(), "nano")
    assert collected.samples == {"first": 1}
    assert collected.fault == "/metrics cannot be collected: ValueError: no"


def test_promises_are_those_of_the_samples() -> None:
    metrics = model_metrics(FakeFleet(), "nano", version="9.9", max_model_len=2048)
    for number in range(10):
        metrics.record_latency(latency_record(end=16.0, first=12.0 if number % 2 else 15.5))
    collected = Collected(metrics.gateway.registry.collect(), "nano")
    views = {(one.priority, one.slo): one for one in collected.slo}
    ttft = views["standard", "ttft"]
    assert (ttft.target_ms, ttft.objective, ttft.good, ttft.bad) == (2000.0, 0.99, 5, 5)
    assert ttft.burn == pytest.approx({"5m": 50, "1h": 50, "6h": 50})
    assert views["standard", "all"].target_ms is None
    assert set(views) == {
        ("realtime", "ttft"),
        ("realtime", "tpot"),
        ("realtime", "all"),
        ("standard", "ttft"),
        ("standard", "tpot"),
        ("standard", "all"),
        ("batch", "all"),
    }


ENDINGS = st.lists(
    st.tuples(
        st.floats(0, 50),
        st.floats(0, 3),
        st.sampled_from(["stop", "length", "abort", "error"]),
        st.booleans(),
        # Usage of aborted requests is reported late.
        st.sampled_from([0.0, 0.0, 10.0, 70.0]),
        st.booleans(),
    ),
    max_size=40,
)


@given(ENDINGS)
def test_latencies_are_those_of_one_model_in_the_last_minute(
    endings: list[tuple[float, float, str, bool, float, bool]],
) -> None:
    recent, now = RecentLatencyRecords(30), 100.0
    minute = LastMinute(recent, "nano")
    kept: list[LatencyRecord] = []
    new: list[LatencyRecord] = []
    for pause, took, outcome, looks, late, is_other in endings:
        now += pause
        end = now - late
        one = latency_record(
            arrival=end - took - 1,
            first=end - 0.5 - took,
            end=end,
            outcome=outcome,
            model="other" if is_other else "nano",
        )
        recent.add(one)
        new.append(one)
        if not looks:
            continue
        kept, new = kept + new[-30:], []  # others are gone before they were looked at
        ended = [one for one in kept if one.end >= now - 60 and one.model == "nano"]
        views = {view.name: view for view in minute.views(now)}
        ttft = sorted(1000 * one.ttft for one in ended if one.ttft is not None)
        assert views["ttft"].count == len(ttft)
        assert views["ttft"].p50 == (ttft[math.ceil(len(ttft) / 2) - 1] if ttft else None)
        answered = [one for one in ended if one.outcome in ("stop", "length")]
        assert views["e2e"].count == len(answered)
        slowest = max((1000 * one.seconds for one in answered), default=None)
        assert views["e2e"].p99 == slowest
