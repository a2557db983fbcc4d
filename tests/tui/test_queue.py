"""Queue screen: at a real socket."""

from __future__ import annotations

import pytest

from gatewayd.tracing.causes import AT_ENGINE, CAUSES
from gatewayd.wire.cause_labels import LABELS
from tests.tui import samples
from tests.tui.conftest import Watching, text_of, until
from tests.tui.fake_daemon import FakeDaemon


@pytest.mark.parametrize(
    ("keys", "verb", "body"),
    [
        ("b", "bump", None),
        ("h", "hold", None),
        ("u", "release", None),
        ("c y", "cancel", None),
        ("B down enter", "bump", {"priority": "standard"}),
    ],
)
async def test_an_action_is_a_call(
    daemon: FakeDaemon, watching: Watching, keys: str, verb: str, body: object
) -> None:
    async with watching(start="queue") as (_, pilot):
        await pilot.press(*keys.split())
        await until(pilot, lambda: daemon.calls)
    assert daemon.calls == [("POST", f"/admin/requests/wait-0000/{verb}", body)]


async def test_a_question_that_is_not_answered_with_yes_cancels_nothing(
    daemon: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="queue") as (console, pilot):
        for key in ("n", "escape", "enter"):
            await pilot.press("down", "c")
            await pilot.pause()
            assert "cancel request wait-000" in text_of(console)
            await pilot.press(key)
        await pilot.pause()
    assert daemon.calls == []


@pytest.mark.parametrize("screen", ["queue", "running"])
async def test_enter_tells_why(daemon: FakeDaemon, watching: Watching, screen: str) -> None:
    row = samples.waiting(7, request_id="req_7"), samples.running(7, request_id="req_8")
    daemon.snapshot = samples.snapshot(waiting=[row[0]], running=[row[1]])
    for name in ("req_7", "req_8"):
        daemon.answers["GET", f"/admin/requests/{name}"] = 404, {"error": {"message": "?"}}
    seen = {"queue": "waiting 1.1s; queued: the running batch", "running": "247 tokens computed"}
    async with watching((80, 24), start=screen) as (console, pilot):
        await pilot.press("enter")
        await until(pilot, lambda: seen[screen] in text_of(console))


async def test_what_is_waited_for_is_readable_in_a_small_terminal(
    daemon: FakeDaemon, watching: Watching
) -> None:
    causes = list(AT_ENGINE.values())
    rows = [samples.waiting(n, cause=cause, reason=CAUSES[cause]) for n, cause in enumerate(causes)]
    daemon.snapshot = samples.snapshot(waiting=rows)
    async with watching((80, 24), start="queue") as (console, pilot):
        lines = text_of(console).splitlines()
        at = next(line.index("waits for") for line in lines if "waits for" in line)
        words = [next(line[at:].strip() for line in lines if row.id in line) for row in rows]
        assert words == [LABELS[cause] for cause in causes]
        assert not any("…" in word for word in words)
        await pilot.resize_terminal(120, 24)
        await until(pilot, lambda: "queued: the running batch was full" in text_of(console))
    assert LABELS.keys() == CAUSES.keys()


async def test_read_only_hides_and_blocks(daemon: FakeDaemon, watching: Watching) -> None:
    async with watching(start="queue", read_only=True) as (console, pilot):
        await pilot.press("c", "y", "b", "h", "u")
        await console.run_action("bump", console.screen)
        await pilot.pause()
        assert "Bump" not in text_of(console)
        assert "[read-only]" in text_of(console)
    assert daemon.calls == []
