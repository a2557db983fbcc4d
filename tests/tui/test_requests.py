"""Request screens: running, log, and explanation of time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from gatewayd_tui.app import Console
from tests.tui import samples
from tests.tui.conftest import Watching, settled, text_of, until
from tests.tui.fake_daemon import FakeDaemon


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def has_seen(console: Console, snapshots: int) -> bool:
    return len(console.shown.history) == snapshots


def chosen(console: Console) -> list[str]:
    page = console.page()
    return [] if page is None else [row.id for row in page.chosen()]


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
@pytest.mark.parametrize(
    ("screen", "last"),
    [("queue", "wait-0004"), ("running", "run-0002"), ("logs", "line 3"), ("explain", "70 % of")],
)
async def test_a_screen_at_a_glance(
    watching: Watching, snapshot: SnapshotAssertion, screen: str, last: str, size: tuple[int, int]
) -> None:
    async with watching(size, start=screen) as (console, pilot):
        assert await settled(pilot, console, last) == snapshot


@pytest.mark.parametrize(
    ("keys", "verb"), [("c y", "cancel"), ("h", "hold"), ("u", "release")], ids=str
)
async def test_an_action_on_choices_is_a_call_for_their_request(
    daemon: FakeDaemon, watching: Watching, keys: str, verb: str
) -> None:
    rows = [samples.running(7, choice=choice) for choice in range(3)]
    daemon.snapshot = samples.snapshot(running=rows)
    async with watching(start="running") as (_, pilot):
        await pilot.press("space", "space", "space", *keys.split())
        await until(pilot, lambda: daemon.calls)
    assert daemon.calls == [("POST", f"/admin/requests/run-0007/{verb}", None)]


async def test_each_marked_request_is_cancelled_after_one_question(
    daemon: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="running") as (console, pilot):
        await pilot.press("space", "down", "space", "c")
        await pilot.pause()
        asked = text_of(console)
        assert "cancel request run-0000 of acme" in asked
        assert "cancel request run-0002 of acme" in asked
        await pilot.press("y")
        await until(pilot, lambda: len(daemon.calls) == 2)
    assert {route for _, route, _ in daemon.calls} == {
        "/admin/requests/run-0000/cancel",
        "/admin/requests/run-0002/cancel",
    }


async def test_ids_of_strangers_stay_one_part_of_the_route(
    daemon: FakeDaemon, watching: Watching
) -> None:
    daemon.snapshot = samples.snapshot(waiting=[samples.waiting(1, id="a/../b?c=[red]%41")])
    async with watching(start="queue") as (_, pilot):
        await pilot.press("h")
        await until(pilot, lambda: daemon.calls)
    assert daemon.calls == [("POST", "/admin/requests/a/../b?c=[red]%41/hold", None)]
    assert daemon.raw_paths == ["/admin/requests/a%2F..%2Fb%3Fc=%5Bred%5D%2541/hold"]


async def test_a_request_that_runs_is_explained_when_it_has_ended(
    daemon: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="running") as (console, pilot):
        await pilot.press("down", "x")
        await until(pilot, lambda: "run-0001 has not finished" in text_of(console))
        assert "240 tokens" not in text_of(console)
        assert "241 tokens computed" in text_of(console)
        found = 200, samples.explanation("run-0001")
        daemon.answers["GET", "/admin/requests/run-0001"] = found
        daemon.snapshot = samples.snapshot(1, running=[])
        await until(pilot, lambda: "70 % of 1000.0 ms" in text_of(console))
        assert "run-0001  /v1/chat/completions" in text_of(console)


async def test_an_explanation_is_chosen_and_copied(watching: Watching) -> None:
    async with watching(start="explain") as (console, pilot):
        await until(
            pilot, lambda: "cmpl" not in text_of(console) and "done-0000  /v1" in text_of(console)
        )
        await pilot.press("down", "down")
        await until(pilot, lambda: "done-0002  /v1" in text_of(console))
        await pilot.press("J")
        assert json.loads(console.clipboard)["id"] == "done-0002"
        await pilot.press("M")
        assert console.clipboard.startswith("**done-0002** /v1/chat/completions")
        await pilot.press("y")
        assert console.clipboard == "done-0002"


async def test_the_slowest_are_listed_by_their_time(daemon: FakeDaemon, watching: Watching) -> None:
    async with watching(start="explain") as (console, pilot):
        await until(pilot, lambda: "the newest requests" in text_of(console))
        await pilot.press("o")
        first = samples.ended("slowest")[0]["id"]
        await until(pilot, lambda: f"{first}  /v1" in text_of(console))
        assert "the slowest requests" in text_of(console)
        rows = [line for line in text_of(console).splitlines() if line.startswith("  done-")]
    slowest = [row["id"] for row in samples.ended("slowest")]
    assert [row.split()[0] for row in rows] == slowest
    assert ("GET", "/admin/requests?order=slowest&limit=50", None) in daemon.calls


async def test_the_list_is_asked_for_when_requests_have_ended_and_only_then(
    daemon: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="explain") as (console, pilot):
        for place, number in enumerate((0, 0, 3), 2):
            daemon.snapshot = samples.snapshot(number)
            await until(pilot, partial(has_seen, console, place))

        def lists() -> int:
            return sum("order=" in route for _, route, _ in daemon.calls)

        await until(pilot, lambda: lists() >= 2)
        await pilot.pause(0.05)
        assert lists() == 2


async def test_the_log_is_narrowed_by_level_and_request(watching: Watching) -> None:
    async with watching(start="logs") as (console, pilot):

        def shown() -> list[int]:
            return [n for n in range(4) if f"line {n} of" in text_of(console)]

        await until(pilot, lambda: shown() == [0, 1, 2, 3])
        await pilot.press("v", "v")
        await until(pilot, lambda: shown() == [1, 2])
        await pilot.press("v", "v", "v")
        await until(pilot, lambda: shown() == [0, 1, 2, 3])
        await pilot.press("g", "r")
        await until(pilot, lambda: "only of run-0000" in text_of(console) and shown() == [0, 3])


async def test_the_log_is_followed_until_it_is_told_not_to(
    daemon: FakeDaemon, watching: Watching
) -> None:
    async with watching((80, 24), start="logs") as (console, pilot):
        daemon.snapshot = samples.snapshot(1, logs=[samples.log(n) for n in range(4, 104)])
        await until(pilot, lambda: "line 103 of" in text_of(console))
        await pilot.press("f", "g")
        daemon.snapshot = samples.snapshot(2, logs=[samples.log(n) for n in range(104, 110)])
        await until(pilot, lambda: len(console.shown.history) == 3)
        await until(pilot, lambda: "line 0 of" in text_of(console))
        assert "line 109 of" not in text_of(console)


@pytest.mark.parametrize(
    ("line", "screen"), [("run-0001", "running"), ("wait-0003", "queue"), ("done-0002", "explain")]
)
async def test_a_line_leads_to_its_request(
    daemon: FakeDaemon, watching: Watching, line: str, screen: str
) -> None:
    daemon.snapshot = samples.snapshot(logs=[samples.log(1, request_id=line)])
    async with watching(start="logs") as (console, pilot):
        await pilot.press("o")
        await until(pilot, lambda: console.current_mode == screen)
        if screen == "explain":
            await until(pilot, lambda: f"{line}  /v1" in text_of(console))
        else:
            await until(pilot, lambda: chosen(console) == [line])


@pytest.mark.parametrize("screen", ["queue", "running", "explain"])
async def test_a_request_leads_to_its_lines(watching: Watching, screen: str) -> None:
    async with watching(start=screen) as (console, pilot):
        if screen == "explain":
            await until(pilot, lambda: "done-0000  /v1" in text_of(console))
        await pilot.press("l")
        first = {"queue": "wait-0000", "running": "run-0000", "explain": "done-0000"}[screen]
        await until(pilot, lambda: f"only of {first}" in text_of(console))


@pytest.mark.parametrize(("screen", "key"), [("queue", "h"), ("running", "h")])
async def test_of_two_requests_with_one_id_the_chosen_one_is_meant(
    daemon: FakeDaemon, watching: Watching, screen: str, key: str
) -> None:
    waiting = [samples.waiting(1, id="same", request_id=f"cmpl-{n}") for n in range(2)]
    running = [samples.running(1, id="same", request_id=f"cmpl-{n}") for n in range(2)]
    daemon.snapshot = samples.snapshot(waiting=waiting, running=running)
    async with watching(start=screen) as (_, pilot):
        await pilot.press(key)
        await until(pilot, lambda: daemon.calls)
    assert daemon.calls == [("POST", "/admin/requests/cmpl-0/hold", None)]


async def test_of_two_that_ended_with_one_id_the_chosen_one_is_explained(
    daemon: FakeDaemon, watching: Watching
) -> None:
    rows = [{**samples.ended("newest")[0], "id": "same", "request_id": f"req_{n}"} for n in "ab"]
    daemon.answers["GET", "/admin/requests?order=newest&limit=50"] = 200, {"requests": rows}
    for name in "ab":
        found = msgspec.structs.replace(
            samples.explanation("same"), request_id=f"req_{name}", endpoint=f"/v1/of-{name}"
        )
        daemon.answers["GET", f"/admin/requests/req_{name}"] = 200, found
    async with watching(start="explain") as (console, pilot):
        await until(pilot, lambda: "same  /v1/of-a" in text_of(console))
        await pilot.press("down")
        await until(pilot, lambda: "same  /v1/of-b" in text_of(console))
        await pilot.press("J")
        assert json.loads(console.clipboard)["request_id"] == "req_b"
    assert not [route for _, route, _ in daemon.calls if "same" in route]


async def test_a_request_is_explained_by_the_id_that_no_other_has(
    daemon: FakeDaemon, watching: Watching
) -> None:
    daemon.snapshot = samples.snapshot(running=[samples.running(1, request_id="cmpl-run-0001")])
    missing = 404, {"error": {"message": "no such request has ended"}}
    daemon.answers["GET", "/admin/requests/cmpl-run-0001"] = missing
    async with watching(start="running") as (console, pilot):
        await pilot.press("x")
        await until(pilot, lambda: "has not finished" in text_of(console))
        daemon.answers["GET", "/admin/requests/cmpl-run-0001"] = (
            200,
            samples.explanation("run-0001"),
        )
        for number in (1, 2):
            daemon.snapshot = samples.snapshot(number, running=[])
            await until(pilot, lambda: "70 % of 1000.0 ms" in text_of(console))
    asked = [route for _, route, _ in daemon.calls if "cmpl" in route]
    assert len(asked) == 2  # not again when it is known


async def test_what_was_refused_shows_the_code_of_its_answer(
    daemon: FakeDaemon, watching: Watching
) -> None:
    rows = samples.ended("newest")
    rows[0] |= {"outcome": "refused", "error": "rate_limit_exceeded"}
    daemon.answers["GET", "/admin/requests?order=newest&limit=50"] = 200, {"requests": rows}
    async with watching((120, 40), start="explain") as (console, pilot):
        await until(pilot, lambda: "rate_limit_exceeded" in text_of(console))
        assert "refused" in text_of(console)
