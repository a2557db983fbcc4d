"""``gatewayd explain``: its admin route and output, without a daemon."""

from __future__ import annotations

import json
from typing import Any, cast
from urllib.parse import quote

import msgspec
import pytest

from gatewayd.admin.app import build_admin
from gatewayd.admin.control import Control
from gatewayd.cli.operate.explain import waterfall
from gatewayd.tracing.archive import Archive
from gatewayd.tracing.recent import RecentLatencyRecords
from gatewayd.tracing.timeline import CauseInterval
from gatewayd.wire.requests import Explanation
from gatewayd_engine.process.time_causes import Cause
from gatewayd_tui.waterfall import markdown, render_breakdown
from tests.gatewayd.tracing.test_latency_record import latency_record


async def get(
    recent: RecentLatencyRecords, path: str, query: str = "", archive: Archive | None = None
) -> tuple[int, Any]:
    """Ask the app."""
    none: Any = None
    app = build_admin(cast(Control, None), none, recent, none, archive=archive)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": query.encode(),
        "headers": [],
    }
    await app(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(part["body"] for part in sent[1:]))


async def test_one_request_is_explained_by_either_id() -> None:
    recent = RecentLatencyRecords()
    recent.add(latency_record(answered_id="a/b:c"))
    for name in ("a/b:c", "req_1"):
        status, found = await get(recent, f"/admin/requests/{name}")
        assert status == 200
        assert (found["id"], found["ms"], found["ttft_ms"]) == ("a/b:c", 6000, 2000)
        assert (found["tpot_ms"], found["priority"]) == (500, "standard")
        assert found["causes"] == {"decode": 3000, "gateway": 1000, "prefill": 1000, "answer": 1000}
        assert sum(part["ms"] for part in found["parts"]) == 6000
        assert found["verdict"] == "50 % of 6000.0 ms: decoding its tokens"


async def test_what_is_not_kept_is_404_and_says_which_ids_there_are() -> None:
    status, answer = await get(RecentLatencyRecords(), "/admin/requests/unknown")
    assert status == 404
    assert "'unknown'" in answer["error"]["message"]
    assert "x-request-id" in answer["error"]["message"]


async def test_the_last_and_the_slowest_are_listed() -> None:
    recent = RecentLatencyRecords()
    for at in range(3):
        recent.add(latency_record(answered_id=f"r{at}", end=16.0 + (at == 1)))
    _, found = await get(recent, "/admin/requests", "limit=2")
    assert [row["id"] for row in found["requests"]] == ["r2", "r1"]
    _, found = await get(recent, "/admin/requests", "order=slowest&limit=1")
    assert [(row["id"], row["ms"], row["cause"]) for row in found["requests"]] == [
        ("r1", 7000, "decode")
    ]


@pytest.mark.parametrize("order", ["newest", "slowest"])
async def test_the_list_is_that_of_one_model_if_it_is_named(order: str) -> None:
    recent = RecentLatencyRecords()
    for at in range(6):
        add = recent.refuse if at == 3 else recent.add
        add(latency_record(answered_id=f"r{at}", model="ab"[at % 2], end=16.0 + at))
    _, found = await get(recent, "/admin/requests", f"order={order}&limit=2&model=b")
    assert [(row["id"], row["model"]) for row in found["requests"]] == [("r5", "b"), ("r3", "b")]
    _, found = await get(recent, "/admin/requests", f"order={order}")
    assert [row["model"] for row in found["requests"]] == ["b", "a"] * 3


async def test_the_model_is_named_wherever_the_request_is_explained() -> None:
    recent = RecentLatencyRecords()
    recent.add(latency_record(model="chat"))
    _, found = await get(recent, "/admin/requests/req_1")
    assert found["model"] == "chat"
    assert waterfall(found)[0] == "mine  /x  chat  standard  stop"
    model = msgspec.convert(found, Explanation)
    assert render_breakdown(model, 100).plain.startswith("mine  /x  chat  -  standard  stop\n")
    assert markdown(model).startswith("**mine** /x, chat, standard, stop, ")


@pytest.mark.parametrize(
    ("query", "param"), [("limit=0", "limit"), ("limit=x", "limit"), ("order=best", "order")]
)
async def test_lists_of_what_there_is_not_are_refused(query: str, param: str) -> None:
    status, answer = await get(RecentLatencyRecords(), "/admin/requests", query)
    assert (status, answer["error"]["param"]) == (400, param)


@pytest.mark.parametrize("first", ["newest", "slowest", "best"])
async def test_of_a_key_that_comes_twice_the_last_counts(first: str) -> None:
    recent = RecentLatencyRecords()
    for at in range(3):
        recent.add(latency_record(answered_id=f"r{at}", end=16.0 + (at == 1)))
    query = f"order={first}&order=slowest&limit=9&limit=1"
    status, found = await get(recent, "/admin/requests", query)
    assert (status, [row["id"] for row in found["requests"]]) == (200, ["r1"])
    status, _ = await get(recent, "/admin/requests", "limit=%C2%B2")
    assert status == 400, "no number, whatever str.isdecimal() says"


async def test_the_waterfall_has_a_bar_for_each_part() -> None:
    recent = RecentLatencyRecords()
    recent.add(latency_record())
    _, found = await get(recent, "/admin/requests/req_1")
    lines = waterfall(found)
    assert lines[0] == "mine  /x  standard  stop"
    bars = [line for line in lines if line.endswith("|")]
    assert [line.split()[0] for line in bars] == ["gateway", "prefill", "decode", "response"]
    assert {len(line) for line in bars} == {len(bars[0])}
    assert bars[2].count("█") == 20
    assert bars[2].index("█") > bars[1].index("█")
    assert lines[-1] == found["verdict"]


async def test_the_strategy_behind_a_cause_is_named_in_all_words() -> None:
    recent = RecentLatencyRecords()
    prefill = CauseInterval(
        Cause.PREFILL, 11.0, 3.0, plugins=2.5, shares=(("scheduler.slow", 2.0), ("drafter.x", 0.5))
    )
    again = CauseInterval(Cause.RECOMPUTE, 14.0, 1.0, strategy="swap")
    recent.add(latency_record(intervals=(prefill, again)))
    _, found = await get(recent, "/admin/requests/req_1")
    due = [(part["cause"], part["strategy"], part["ms"]) for part in found["parts"]]
    assert due == [
        ("gateway", "", 1000),
        ("prefill", "", 500),
        ("recompute", "swap", 1000),
        ("plugin", "scheduler.slow", 2000),
        ("plugin", "drafter.x", 500),
        ("answer", "", 1000),
    ]
    assert found["verdict"] == (
        "42 % of 6000.0 ms: running strategies and plugins (scheduler.slow)"
    )
    bars = [line for line in waterfall(found) if line.endswith("|")]
    assert bars[3].startswith("plugin: scheduler.slow ")
    assert bars[2].startswith("recompute: swap ")
    assert len({line.index("|") for line in bars}) == 1
    _, listed = await get(recent, "/admin/requests")
    (row,) = listed["requests"]
    assert (row["cause"], row["strategy"]) == ("plugin", "scheduler.slow")
    model = msgspec.convert(found, Explanation)
    shown = render_breakdown(model, 100).plain
    assert "plugin: scheduler.slow" in shown
    assert "| recompute: swap |" in markdown(model)
