"""Console of a daemon of several models: one is shown, and every call is about that one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gatewayd.wire.models import CatalogueView, ModelRow
from gatewayd.wire.snapshot import Snapshot
from gatewayd_tui.state import ConsoleState, advance
from tests.tui.conftest import Watching, said, text_of, until
from tests.tui.fake_daemon import FakeDaemon
from tests.tui.samples import engine, log, snapshot
from tests.tui.test_models import changes

GIB = 1 << 30


def about(model: str, number: int = 0, **changed: Any) -> Snapshot:
    found = snapshot(number, **changed)
    daemon = msgspec.structs.replace(found.daemon, model=model, models=["chat", "code"])
    return msgspec.structs.replace(found, daemon=daemon)


def row(name: str, **changed: Any) -> ModelRow:
    fields: dict[str, Any] = {
        "name": name,
        "names": [],
        "state": "ready",
        "is_pinned": False,
        "host_bytes": 2 * GIB,
        "device_bytes": 0,
        "loads": 1,
        "unloads": 0,
        "load_seconds": 1.5,
        "num_requests": 12_345,
        "idle_seconds": 0.0,
    }
    return ModelRow(**fields | changed)


@pytest.fixture
def two(daemon: FakeDaemon) -> FakeDaemon:
    daemon.snapshot = about("chat")
    daemon.of_models = {
        "chat": about("chat"),
        "code": about("code", engines=[engine(dtype="bfloat16")], waiting=[]),
    }
    listed = CatalogueView(
        models=[
            row("chat", names=["default"], is_pinned=True),
            row("code", state="asleep", host_bytes=GIB, loads=3, unloads=3, idle_seconds=250.0),
        ],
        host_bytes=2 * GIB,
        host_limit=4 * GIB,
        device_bytes=0,
        device_limit=None,
    )
    daemon.prefixed["GET", "/admin/models"] = 200, msgspec.to_builtins(listed)
    return daemon


async def test_a_key_chooses_the_model_of_all_calls(two: FakeDaemon, watching: Watching) -> None:
    async with watching() as (console, pilot):
        assert "chat, of 2 models" in text_of(console).splitlines()[0]
        await pilot.press("a", "y")
        await until(pilot, lambda: changes(two))
        await pilot.press("N")
        await until(pilot, lambda: "Show the model" in text_of(console))
        await pilot.press("down", "enter")
        await until(pilot, lambda: "code, of 2 models" in text_of(console))
        await pilot.press("a", "y")
        await until(pilot, lambda: len(changes(two)) == 2)
        await pilot.press("5")
        prefixes = ("GET", "/admin/prefixes?engine=0&parent=&limit=200&model=code", None)
        await until(pilot, lambda: prefixes in two.calls)
        await pilot.press("plus")
        await until(pilot, lambda: len(two.intervals) == 3)
    assert two.intervals == ["interval=0.5", "interval=0.5&model=code", "interval=1&model=code"]
    assert [route for _, route, _ in changes(two)] == [
        "/admin/pause?model=chat",
        "/admin/pause?model=code",
    ]


async def test_until_a_model_is_shown_nothing_is_changed(
    two: FakeDaemon, watching: Watching
) -> None:
    code = two.of_models.pop("code")
    async with watching(start="queue") as (console, pilot):
        await pilot.press("N", "down", "enter")
        await until(pilot, lambda: "[switching to code]" in text_of(console))
        assert "chat, of 2 models" in text_of(console)
        assert "wait-0000" in text_of(console)
        await pilot.press("c", "h")
        await pilot.pause()
        two.of_models["code"] = code
        await until(pilot, lambda: "code, of 2 models" in text_of(console))
        assert "switching" not in text_of(console)
        assert "wait-0000" not in text_of(console)
    assert changes(two) == []


async def test_all_models_are_listed_and_enter_shows_one(
    two: FakeDaemon, watching: Watching
) -> None:
    async with watching((110, 24), start="models") as (console, pilot):
        await until(pilot, lambda: "asleep" in text_of(console))
        shown = text_of(console)
        assert "2 models · host memory 2.0 GiB of 4.0 GiB ████░░░░" in shown
        chat = next(line for line in shown.splitlines() if "▸chat" in line)
        assert " ".join(chat.split()) == (
            "▸chat default ● ready yes 2.0 GiB ████░░░░ 50% 1 0 1.5s 12.3k 0s"
        )
        code = next(line for line in shown.splitlines() if " code " in line)
        assert " ".join(code.split()) == (
            "code - ○ asleep 1.0 GiB ██░░░░░░ 25% 3 3 1.5s 12.3k 4m10s"
        )
        assert "float32" in shown
        await pilot.press("down", "l")
        await until(pilot, lambda: changes(two))
        assert [route for _, route, _ in changes(two)] == ["/admin/models/code/load?model=chat"]
        await pilot.press("enter")
        await until(pilot, lambda: "▸code" in text_of(console))
        assert "bfloat16" in text_of(console)
        await pilot.press("k", "u", "y")
        await until(pilot, lambda: len(changes(two)) == 2)
    assert changes(two)[1][1] == "/admin/models/chat/unload?model=code"


async def test_a_daemon_of_one_model_has_no_other(daemon: FakeDaemon, watching: Watching) -> None:
    async with watching() as (console, pilot):
        await pilot.press("N")
        await until(pilot, lambda: said(console))
        assert said(console) == ["no other model can be shown: this is the daemon's only model"]
    assert daemon.intervals == ["interval=0.5"]


def test_another_model_has_another_history_and_the_same_log() -> None:
    state = ConsoleState()
    for number in range(3):
        state = advance(state, about("chat", number, logs=[log(number)]))
    # Its snapshots are counted from 1.
    other = msgspec.structs.replace(about("code", 3, logs=[log(3)]), number=1)
    state = advance(state, other)
    assert len(state.history) == 1
    assert [line.number for line in state.logs] == [0, 1, 2, 3]
