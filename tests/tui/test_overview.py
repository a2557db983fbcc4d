"""Overview: contents, and actions that stop clients."""

from __future__ import annotations

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from gatewayd_tui.messages import SnapshotArrived
from tests.tui import samples
from tests.tui.conftest import Watching, settled, text_of, until
from tests.tui.fake_daemon import FakeDaemon


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
async def test_the_overview_at_a_glance(
    watching: Watching, snapshot: SnapshotAssertion, size: tuple[int, int]
) -> None:
    async with watching(size) as (console, pilot):
        for number in range(1, 12):
            console.on_snapshot_arrived(SnapshotArrived(samples.snapshot(number)))
        assert await settled(pilot, console, "line 46 of") == snapshot


@pytest.mark.parametrize(
    ("keys", "call"),
    [
        ("a y", ("POST", "/admin/pause", {"seconds": None})),
        ("r", ("POST", "/admin/resume", None)),
        ("D y", ("POST", "/admin/drain", None)),
    ],
)
async def test_admission_is_paused_resumed_and_drained(
    daemon: FakeDaemon, watching: Watching, keys: str, call: object
) -> None:
    async with watching() as (_, pilot):
        await pilot.press(*keys.split())
        await until(pilot, lambda: daemon.calls)
    assert daemon.calls == [call]


@pytest.mark.parametrize("key", ["a", "D"])
async def test_what_stops_clients_asks_first(
    daemon: FakeDaemon, watching: Watching, key: str
) -> None:
    async with watching() as (console, pilot):
        await pilot.press(key)
        await pilot.pause()
        assert "Are you sure?" in text_of(console)
        await pilot.press("enter")
        await pilot.pause()
        assert "Are you sure?" not in text_of(console)
    assert daemon.calls == []


async def test_states_and_troubles_are_words_and_glyphs(
    daemon: FakeDaemon, watching: Watching
) -> None:
    ill = msgspec.structs.replace(
        samples.snapshot().daemon,
        state="paused",
        troubles=["the disk is [full]", "an engine is lost"],
    )
    lost = samples.engine(state="failed", detail="out of memory at layer 3")
    daemon.snapshot = samples.snapshot(daemon=ill, engines=[lost], slo=[], latencies=[])
    async with watching((100, 30)) as (console, _):
        shown = text_of(console)
    assert "‖ paused" in shown
    assert "✖ the disk is [full]" in shown
    assert "✖ an engine is lost" in shown
    assert "✖ 2 problems" in shown.splitlines()[0]
    assert "✖ failed" in shown
    assert "out of memory at layer 3" in shown
