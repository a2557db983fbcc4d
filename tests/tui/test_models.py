"""Models screen: the model and its engines, at a real socket."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tui.conftest import Watching, text_of, until
from tests.tui.fake_daemon import FakeDaemon
from tests.tui.samples import engine, snapshot


def changes(daemon: FakeDaemon) -> list[tuple[str, str, Any]]:
    return [call for call in daemon.calls if call[0] != "GET"]


async def test_the_model_is_told_by_an_engine_that_has_it(
    daemon: FakeDaemon, watching: Watching
) -> None:
    lost = engine(
        index=1,
        state="starting",
        detail="reading weights 40 %",
        pid=None,
        num_parameters=0,
        dtype="",
        device="",
    )
    daemon.snapshot = snapshot(engines=[lost, engine()])
    async with watching(size=(80, 24), start="models") as (console, _):
        shown = text_of(console)
        assert "tiny   1 of 2 engines are ready" in shown
        assert "30M parameters as float32, 114.4 MiB, context 2048 tokens" in shown
        assert "◌ starting" in shown
        assert "reading weig" in shown


async def test_before_any_engine_has_it_nothing_is_made_up(
    daemon: FakeDaemon, watching: Watching
) -> None:
    daemon.snapshot = snapshot(engines=[engine(num_parameters=0, state="starting")])
    async with watching(start="models") as (console, _):
        assert "size unknown until an engine has loaded it" in text_of(console)


@pytest.mark.parametrize(("keys", "verb"), [("l", "load"), ("u y", "unload")])
async def test_loading_is_a_call_and_unloading_one_after_a_question(
    daemon: FakeDaemon, watching: Watching, keys: str, verb: str
) -> None:
    async with watching(start="models") as (console, pilot):
        first, *rest = keys.split()
        await pilot.press(first)
        await pilot.pause()
        if rest:
            assert "unload model tiny: cancel its requests" in text_of(console)
            assert changes(daemon) == []
        await pilot.press(*rest)
        await until(pilot, lambda: changes(daemon))
    assert changes(daemon) == [("POST", f"/admin/models/tiny/{verb}", None)]
