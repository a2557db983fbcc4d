"""Latency record: parts sum up, and the ring forgets the oldest."""

from __future__ import annotations

from typing import Any

import pytest

from gatewayd.tracing.causes import AT_ENGINE, CAUSES
from gatewayd.tracing.latency_record import LatencyRecord, TimePart
from gatewayd.tracing.recent import RecentLatencyRecords
from gatewayd.tracing.request_trace import Span
from gatewayd.tracing.timeline import CauseInterval
from gatewayd_engine.process.time_causes import Cause


def latency_record(**fields: Any) -> LatencyRecord:
    given = {
        "request_id": "req_1",
        "answered_id": "mine",
        "endpoint": "/x",
        "tenant": "",
        "priority": 1,
        "outcome": "stop",
        "prompt_tokens": 3,
        "cached_tokens": 0,
        "completion_tokens": 5,
        "num_choices": 1,
        "num_preemptions": 0,
        "unix": 0.0,
        "arrival": 10.0,
        "spans": (),
        "submitted": 11.0,
        "notified": 11.0,
        "intervals": (
            CauseInterval(Cause.PREFILL, 11.0, 1.0),
            CauseInterval(Cause.DECODE, 12.0, 3.0),
        ),
        "computed": 15.0,
        "first": 12.0,
        "last": 14.0,
        "end": 16.0,
        **fields,
    }
    return LatencyRecord(**given)


def test_the_gateway_s_own_id_is_of_one_ledger_whatever_clients_send() -> None:
    recent = RecentLatencyRecords(2)
    first, second = latency_record(), latency_record(request_id="req_2", answered_id="req_1")
    recent.add(first)
    recent.add(second)
    assert recent.find("req_1") is first
    recent.add(latency_record(request_id="req_3", answered_id="req_3"))
    assert recent.find("req_1") is second
    recent.add(latency_record(request_id="req_4", answered_id="req_4"))
    assert recent.find("req_1") is recent.find("mine") is None


def test_its_time_line_is_cut_into_parts() -> None:
    found = latency_record(
        spans=(Span("grammar", 10.25, 10.5), Span("receive", 10.0, 10.125)),
        notified=11.5,
        intervals=(
            CauseInterval(Cause.PAGES, 10.9, 1.1),
            CauseInterval(Cause.PREFILL, 12.0, 2.0, others=1.0, plugins=0.5),
            CauseInterval(Cause.DECODE, 14.0, 1.0),
        ),
    )
    assert found.parts() == [
        TimePart("receive", 0.0, 0.125),
        TimePart("gateway", 0.125, 0.125),
        TimePart("grammar", 0.25, 0.25),
        TimePart("gateway", 0.5, 0.5),
        TimePart("plugin", 1.0, 0.5),
        TimePart("pages", 1.5, 0.5),
        TimePart("prefill", 2.0, 0.5),
        TimePart("crowd", None, 1.0),
        TimePart("decode", 4.0, 1.0),
        TimePart("plugin", None, 0.5),
        TimePart("answer", 5.0, 1.0),
    ]
    assert sum(found.totals().values()) == found.seconds
    assert list(found.totals())[:1] == ["plugin"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"intervals": (), "computed": None},
        {"intervals": (), "computed": 11.0, "outcome": "error"},
        # Those who watch requests took longer than the engine.
        {"notified": 14.5},
        {"notified": 16.0},
        # Spans that overlap, that began before the request, that ended after it was sent.
        {"spans": (Span("grammar", 10.2, 10.8), Span("receive", 9.0, 10.5))},
        {"spans": (Span("grammar", 10.5, 13.0),)},
        {
            "intervals": (
                CauseInterval(Cause.TURN, None, 2.0, 0.5, 0.5),
                CauseInterval(Cause.DECODE, 13.0, 2.0),
            )
        },
    ],
)
def test_parts_add_up_to_the_whole(fields: dict[str, Any]) -> None:
    found = latency_record(**fields)
    parts = found.parts()
    assert sum(part.seconds for part in parts) == pytest.approx(6.0, abs=1e-12)
    assert {part.cause for part in parts} <= set(CAUSES)
    at = 0.0
    for part in parts:
        if part.begin is not None:
            assert part.begin >= at - 1e-12
            at = part.begin


def test_every_cause_of_an_engine_has_words() -> None:
    assert set(AT_ENGINE) >= set(Cause)
    assert set(AT_ENGINE.values()) <= set(CAUSES)


def test_how_fast_its_tokens_came() -> None:
    assert (latency_record().ttft, latency_record().tpot, latency_record().seconds) == (
        2.0,
        0.5,
        6.0,
    )
    assert (
        latency_record(first=None, last=None).ttft,
        latency_record(completion_tokens=1).tpot,
    ) == (None, None)
    assert latency_record(completion_tokens=10, num_choices=2).tpot == 0.5


def test_the_last_requests_are_found_by_both_ids_and_the_oldest_are_forgotten() -> None:
    recent = RecentLatencyRecords(3)
    made = [
        latency_record(request_id=f"req_{i}", answered_id=f"c{i}", end=16.0 + i % 3)
        for i in range(5)
    ]
    for one in made:
        recent.add(one)
    assert [recent.find(f"req_{i}") for i in range(5)] == [None, None, *made[2:]]
    assert [recent.find(f"c{i}") for i in range(5)] == [None, None, *made[2:]]
    assert recent.newest(2) == [made[4], made[3]]
    assert recent.slowest(9) == [made[2], made[4], made[3]]
    assert len(recent) == 3


def test_of_requests_with_the_same_id_the_latest_is_found() -> None:
    recent = RecentLatencyRecords(2)
    made = [latency_record(request_id=f"req_{i}", answered_id="same") for i in range(3)]
    for at, one in enumerate(made):
        recent.add(one)
        assert recent.find("same") is one, at
    assert recent.find("req_0") is None


def test_who_hammers_pushes_out_only_what_was_refused() -> None:
    recent = RecentLatencyRecords(2)
    recent.add(latency_record(request_id="req_a", answered_id="same"))
    made = [
        latency_record(request_id=f"req_{i}", answered_id=f"c{i}", end=17.0 + i) for i in range(5)
    ]
    for one in made:
        recent.refuse(one)
    assert [one.request_id for one in recent.newest(9)] == ["req_4", "req_3", "req_a"]
    assert [one.request_id for one in recent.slowest(1)] == ["req_4"]
    assert [recent.find(f"c{i}") for i in range(5)] == [None, None, None, *made[3:]]
    assert [one.request_id for one in recent.backwards()] == ["req_a"]
    again = latency_record(request_id="req_b", answered_id="same", end=30.0)
    recent.refuse(again)
    assert recent.find("same") is again, "the latest of them"
