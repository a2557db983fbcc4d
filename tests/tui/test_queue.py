"""The queue's screen, at a real socket."""

from __future__ import annotations

import pytest

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


async def test_read_only_hides_and_blocks(daemon: FakeDaemon, watching: Watching) -> None:
    async with watching(start="queue", read_only=True) as (console, pilot):
        await pilot.press("c", "y", "b", "h", "u")
        await console.run_action("bump", console.screen)
        await pilot.pause()
        assert "Bump" not in text_of(console)
        assert "[read-only]" in text_of(console)
    assert daemon.calls == []
