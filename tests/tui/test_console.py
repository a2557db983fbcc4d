"""Console: screens, keys, lost and restored connections, read-only mode."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import msgspec
import pytest

from gatewayd_tui.app import INTERVALS, Console
from gatewayd_tui.client import DaemonSource
from gatewayd_tui.palette import Commands, is_change, own_bindings
from gatewayd_tui.recording import Recorded, Recorder, line_of, read
from gatewayd_tui.screens import SCREENS
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.screens.queue import QueueScreen
from tests.tui.conftest import Watching, said, text_of, until
from tests.tui.fake_daemon import FakeDaemon
from tests.tui.samples import snapshot

pytestmark = pytest.mark.usefixtures("daemon")


def saved(folder: Path) -> list[Path]:
    return list(folder.glob("gatewayd-*.jsonl"))


def is_open(console: Console, screen: type[ConsoleScreen]) -> bool:
    return console.current_mode == screen.NAME


async def test_a_key_opens_each_screen(watching: Watching) -> None:
    async with watching((80, 24)) as (console, pilot):
        for screen in reversed(SCREENS):
            await pilot.press(screen.KEY)
            await until(pilot, partial(is_open, console, screen))
            line = text_of(console).splitlines()[1]
            assert f"{screen.KEY}▸{screen.TITLE}" in line
            others = [each for each in SCREENS if each is not screen]
            assert [f" {each.KEY} {each.TITLE[:2]}" in line for each in others] == [True] * len(
                others
            )


def test_keys_and_ids_are_of_one_thing_each() -> None:
    keys = [screen.KEY for screen in SCREENS]
    taken = [key for binding in Console.BINDINGS for key in binding.key.split(",")]  # type: ignore[union-attr]
    assert len(set(taken)) == len(taken) > len(keys)
    ids = [binding.id for screen in SCREENS for binding in own_bindings(screen)]
    assert None not in ids
    assert len(set(ids)) == len(ids)
    for screen in SCREENS:
        own = [key for binding in own_bindings(screen) for key in binding.key.split(",")]
        assert not set(own) & set(taken), screen.NAME
        for binding in own_bindings(screen):
            assert binding.id is not None
            assert binding.id.startswith(f"{screen.NAME}.")
            whose = Console if binding.action.startswith("app.") else screen
            name = binding.action.removeprefix("app.").partition("(")[0]
            assert hasattr(whose, f"action_{name}")


async def test_a_lost_daemon_leaves_the_last_state_and_comes_back_by_itself(
    daemon: FakeDaemon, watching: Watching
) -> None:
    async with watching((80, 24), start="queue") as (console, pilot):
        daemon.cut = True
        await until(pilot, lambda: console.shown.lost)
        shown = text_of(console)
        assert "✖ the daemon at" in shown
        assert "✖ lost" in shown
        assert "wait-0004" in shown
        assert console.screen.query_one("#body").styles.opacity == 0.5
        daemon.snapshot, daemon.cut = snapshot(9, waiting=snapshot().waiting[:1]), False
        await until(pilot, lambda: console.shown.lost is None)
        assert "✖" not in text_of(console)
        assert "wait-0004" not in text_of(console)
        assert console.screen.query_one("#body").styles.opacity == 1.0


async def test_a_daemon_that_is_not_there_yet_is_waited_for(
    daemon: FakeDaemon, tmp_path: Path
) -> None:
    path = tmp_path / "later.sock"
    console = Console(DaemonSource(str(path)))
    async with console.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "no daemon answers" in text_of(console))
        os.symlink(daemon.path, path)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: console.shown.snapshot is not None)
        assert "● ready" in text_of(console)


async def test_another_version_is_said(daemon: FakeDaemon, watching: Watching) -> None:
    async with watching((100, 24)) as (console, pilot):
        daemon.raw = b'{"version": 9}'
        await until(pilot, lambda: console.shown.lost)
        assert "the daemon sends snapshot version 9, this console supports 1" in text_of(console)


async def test_a_frozen_console_stands_still_and_goes_on(
    daemon: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="queue") as (console, pilot):
        await pilot.press("p")
        assert "[frozen]" in text_of(console)
        daemon.snapshot = snapshot(1, waiting=[])
        await until(pilot, lambda: len(console._state.history) == 2)
        assert "wait-0000" in text_of(console)
        await pilot.press("p")
        await pilot.pause()
        assert "wait-0000" not in text_of(console)


async def test_the_interval_is_asked_of_the_daemon(daemon: FakeDaemon, watching: Watching) -> None:
    async with watching() as (console, pilot):
        await pilot.press("plus", "plus", "minus")
        await until(pilot, lambda: len(daemon.intervals) == 4)
        assert console.interval == 1.0
        for _ in INTERVALS:
            await pilot.press("minus")
        assert console.interval == INTERVALS[0]
    assert daemon.intervals[:2] == ["interval=0.5", "interval=1"]


async def test_a_saved_snapshot_is_a_recording(
    watching: Watching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with watching() as (_, pilot):
        await pilot.press("e")
        await until(pilot, lambda: saved(tmp_path))
        await until(pilot, lambda: saved(tmp_path)[0].stat().st_size)
    assert list(read(saved(tmp_path)[0])) == [snapshot()]
    assert saved(tmp_path)[0].stat().st_mode & 0o777 == 0o600


async def test_where_nothing_can_be_saved_it_is_said(
    watching: Watching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with watching() as (console, pilot):
        os.rmdir(tmp_path)
        await pilot.press("e")
        await until(pilot, lambda: said(console))
        assert "cannot save" in said(console)[0]


async def test_a_full_disk_ends_the_recording_and_not_the_console(
    daemon: FakeDaemon, watching: Watching
) -> None:
    async with watching(recorder=Recorder(Path("/dev/full"))) as (console, pilot):
        await until(pilot, lambda: said(console))
        daemon.snapshot = snapshot(1)
        await until(pilot, lambda: len(console.shown.history) == 2)
        assert said(console) == ["recording to /dev/full stopped: No space left on device"]


async def test_what_is_seen_is_recorded(
    daemon: FakeDaemon, watching: Watching, tmp_path: Path
) -> None:
    file = tmp_path / "seen.jsonl"
    async with watching(recorder=Recorder(file)) as (console, pilot):
        daemon.snapshot = snapshot(1)
        await until(pilot, lambda: len(console.shown.history) == 2)
    assert list(read(file)) == [snapshot(0), snapshot(1)]


async def test_a_recording_is_shown_and_offers_no_change(
    watching: Watching, tmp_path: Path
) -> None:
    file = tmp_path / "some.jsonl"
    file.write_bytes(line_of(snapshot(0)) + line_of(snapshot(1)))
    async with watching(source=Recorded(file), interval=0.01, start="queue") as (console, pilot):
        await until(pilot, lambda: len(console.shown.history) == 2)
        assert "[recording]" in text_of(console)
        assert "Cancel" not in text_of(console)
        await pilot.press("w")
        await until(pilot, lambda: "is a recording" in text_of(console))


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.NAME)
async def test_read_only_offers_and_makes_no_change(
    daemon: FakeDaemon, watching: Watching, screen: type[ConsoleScreen]
) -> None:
    async with watching(start=screen.NAME, read_only=True) as (console, pilot):
        changes = [b for b in own_bindings(screen) if is_change(screen, b.action)]
        for binding in changes:
            await pilot.press(binding.key.partition(",")[0])
            await pilot.pause()
            await pilot.press("y")
            await console.run_action(binding.action, console.screen)
            shown = f" {binding.key} {binding.description} "
            assert shown not in f" {text_of(console).splitlines()[-1]} "
        await pilot.pause()
    assert [call for call in daemon.calls if call[0] != "GET"] == []


async def test_the_palette_has_every_screen_and_action(
    daemon: FakeDaemon, watching: Watching
) -> None:
    async with watching() as (console, pilot):
        titles = [command.title for command in Commands(console.screen)._commands()]
        wanted = [screen.TITLE for screen in SCREENS]
        wanted += [f"{s.TITLE}: {b.description}" for s in SCREENS for b in own_bindings(s)]
        assert titles == wanted
        await pilot.press("colon", *"queuehold")
        await pilot.pause(0.3)
        await pilot.press("down", "enter")
        await until(pilot, lambda: daemon.calls)
        assert console.current_mode == "queue"
    assert daemon.calls == [("POST", "/admin/requests/wait-0000/hold", None)]


async def test_help_shows_the_keys_of_the_screen(watching: Watching) -> None:
    async with watching((80, 60), start="queue") as (console, pilot):
        await pilot.press("question_mark")
        await pilot.pause()
        shown = text_of(console)
        for binding in own_bindings(QueueScreen):
            assert binding.description in shown
        assert "Freeze" in shown
        await pilot.press("escape")
        await pilot.pause()
        assert "Freeze" not in text_of(console)


async def test_a_filter_is_typed_kept_and_taken_away(watching: Watching) -> None:
    async with watching(start="queue") as (console, pilot):
        await pilot.press("slash", *"globex", "enter")
        await pilot.pause()
        shown = text_of(console)
        assert "wait-0001" in shown
        assert "wait-0000" not in shown
        await pilot.press("escape")
        await pilot.pause()
        assert "wait-0000" in text_of(console)


async def test_ids_are_copied(watching: Watching) -> None:
    async with watching(start="queue") as (console, pilot):
        await pilot.press("space", "space", "y")
        assert console.clipboard == "wait-0000\nwait-0001"


async def test_a_refusal_is_shown_and_nothing_ends(daemon: FakeDaemon, watching: Watching) -> None:
    error = {"error": {"message": "it has [b]ended"}}
    daemon.answers["POST", "/admin/requests/wait-0000/hold"] = 404, error
    async with watching(start="queue", notifications=True) as (console, pilot):
        await pilot.press("h")
        await until(pilot, lambda: "it has [b]ended" in text_of(console))


async def test_a_dialog_stays_while_news_comes(daemon: FakeDaemon, watching: Watching) -> None:
    async with watching(start="queue") as (console, pilot):
        await pilot.press("c")
        daemon.snapshot = snapshot(1, waiting=[])
        await until(pilot, lambda: len(console.shown.history) == 2)
        await pilot.press("y")
        await until(pilot, lambda: daemon.calls)
    assert daemon.calls == [("POST", "/admin/requests/wait-0000/cancel", None)]


async def test_no_colour_needs_no_colour(
    daemon: FakeDaemon, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    held = msgspec.structs.replace(snapshot().waiting[0], is_held=True, slack_ms=-5.0)
    daemon.snapshot = snapshot(waiting=[held])
    async with watching(start="queue") as (console, _):
        assert console.no_color
        shown = text_of(console)
        assert "‖ held: " in shown
        assert "!-5.0ms" in shown
