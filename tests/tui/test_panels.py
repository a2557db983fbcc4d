"""Plugin panels: third-party ones work, broken ones disturb no other panel."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gatewayd_hooks.console import Action, AdminCalls, Look, Panel, Rows
from gatewayd_tui.app import Console, taken_keys
from gatewayd_tui.discovery import NoSocket, find_plugins
from gatewayd_tui.extensions import Extensions, PanelContent, call_in_thread, load, render_panel
from gatewayd_tui.widgets.confirm import Confirm
from tests.tui.conftest import Watching, said, text_of, until
from tests.tui.fake_daemon import FakeDaemon

CROWD = Path(__file__).parents[1] / "third_party" / "gatewayd-console-crowd" / "src"
HEAD = """
from gatewayd_hooks.console import Action, Panel, Rows
from gatewayd_hooks.markers import hookimpl
def lines(look): return ["it works"]
"""
PANELS = "@hookimpl\ndef gatewayd_console_panels(): "
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install parts of the console, from source or as they are."""
    before = set(sys.modules)

    def put(name: str, source: str | None = None, module: str | None = None) -> None:
        module = module or f"their_{name}"
        info = tmp_path / f"their_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: their-{name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[gatewayd]\nconsole.{name} = {module}\n")
        if source is not None:
            (tmp_path / f"{module}.py").write_text(HEAD + source)

    monkeypatch.syspath_prepend(tmp_path)
    yield put
    for name in set(sys.modules) - before:
        if name.startswith(("their_", "gatewayd_console_crowd")):
            del sys.modules[name]


async def test_a_strangers_panel_and_action_work(
    daemon: FakeDaemon, watching: Watching, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(CROWD)
    install("crowd", module="gatewayd_console_crowd")
    added = load(["crowd"])
    assert added.failed == ()
    waiting = [{"id": f"r{n}", "tenant": "globex", "age_ms": 1, "prompt_tokens": 2} for n in (1, 2)]
    daemon.answers["GET", "/admin/snapshot"] = 200, {"waiting": waiting}
    refusal = 404, {"error": {"message": "it has ended"}}
    daemon.answers["POST", "/admin/requests/r2/cancel"] = refusal
    async with watching(added=added) as (console, pilot):
        await pilot.press("f6")
        await until(pilot, lambda: "prompt tokens" in text_of(console))
        rows = [line.split() for line in text_of(console).splitlines() if "globex" in line]
        assert rows == [["globex", "2", "204", "2.0"]]
        await pilot.press("colon", *"largest")
        await until(pilot, lambda: "Plugin crowd" in text_of(console))
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(console.screen, Confirm))
        assert "Cancel what the largest crowd waits for (plugin crowd)" in text_of(console)
        assert daemon.calls == []
        await pilot.press("y")
        await until(pilot, lambda: said(console))
        assert said(console) == [
            "✓ 1 waiting requests of globex are cancelled; 1 are not: it has ended"
        ]
    assert [call[:2] for call in daemon.calls[1:]] == [
        ("POST", "/admin/requests/r1/cancel"),
        ("POST", "/admin/requests/r2/cancel"),
    ]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import no_such_module", "no_such_module"),
        ("raise SystemExit(3)", "SystemExit"),
        (PANELS + "raise ValueError('no panels today')", "no panels today"),
        (PANELS + "return [Panel('Bad Id', 'T', lines)]", "id is 'Bad Id'"),
        (PANELS + "return ['a panel']", "returned str, not Panel"),
        (PANELS + "return [Panel('a', 'T', lines), Panel('a', 'T', lines)]", "a duplicate id"),
        ("@hookimpl\ndef gatewayd_console_pannels(): return []", "did you mean"),
        ("", "neither a panel nor an action"),
    ],
)
def test_a_broken_one_is_told_of_and_the_others_are_there(
    install: Install, source: str, reason: str
) -> None:
    install("broken", source)
    install("sound", PANELS + "return [Panel('ok', 'Sound', lines)]")
    added = load(["broken", "sound", "broken"])
    assert [name for name, _ in added.panels] == ["sound"]
    ((name, told),) = added.failed
    assert name == "broken"
    assert reason in told


def test_one_that_is_not_installed_or_never_loads_is_told_of(
    install: Install, tmp_path: Path
) -> None:
    may_load = tmp_path / "may-load"
    install(
        "slow", f"import os, time\nwhile not os.path.exists({str(may_load)!r}): time.sleep(0.01)"
    )
    added = load(["crwd", "slow"], seconds=0.2)
    may_load.touch()
    assert [each.plugin for each in added.failed] == ["crwd", "slow"]
    assert "is not installed" in added.failed[0].reason
    assert added.failed[1].reason == "does not load within 0.2 s"


def added(*panels: Panel, actions: tuple[Action, ...] = ()) -> Extensions:
    return Extensions(tuple(("their", p) for p in panels), tuple(("their", a) for a in actions))


def raises(look: Look) -> Rows:
    raise KeyError("tenant")


def hangs(look: Look) -> Rows:
    threading.Event().wait(5)
    return Rows(["a"], [])


def changes_the_look(look: Look) -> list[str]:
    look["waiting"].clear()  # its own copy
    return [str(len(look["waiting"]))]


async def test_a_panel_that_raises_says_so_and_is_asked_no_more(
    daemon: FakeDaemon, watching: Watching
) -> None:
    asked: list[int] = []

    def counted(look: Look) -> Rows:
        asked.append(1)
        return raises(look)

    async with watching(added=added(Panel("bad", "Bad", counted, "f6"))) as (console, pilot):
        await pilot.press("f6")
        for _ in range(5):
            page = console.page()
            assert page is not None
            page.refresh_state()
            await pilot.pause(0.02)
        await until(pilot, lambda: "disabled after repeated faults" in text_of(console))
        assert "✖ plugin their, panel bad: KeyError: 'tenant'" in text_of(console)
        assert len(asked) == 3
        await pilot.press("r")
        await until(pilot, lambda: len(asked) == 4)
        await pilot.press("2")  # the rest goes on
        await until(pilot, lambda: "wait-0000" in text_of(console))


async def test_a_panel_that_hangs_holds_up_nobody(
    watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gatewayd_tui.screens.panel.SHOW_SECONDS", 0.1)
    async with watching(added=added(Panel("slow", "Slow", hangs, "f6"))) as (console, pilot):
        await pilot.press("f6")
        await until(pilot, lambda: "it did not return within 0.1 s" in text_of(console))
        await pilot.press("2")
        await until(pilot, lambda: "wait-0000" in text_of(console))


async def test_a_panel_gets_a_copy(watching: Watching) -> None:
    async with watching(added=added(Panel("bad", "Bad", changes_the_look, "f6"))) as (
        console,
        pilot,
    ):
        await pilot.press("f6")
        await pilot.pause(0.1)
        snapshot = console.shown.snapshot
        assert snapshot is not None
        assert len(snapshot.waiting) == 5


async def turn(pilot: Any, console: Console, shown: list[object], now: object, text: str) -> None:
    """Let a panel show something else, and wait for it."""
    shown[0] = now
    page = console.page()
    assert page is not None
    page.refresh_state()
    await until(pilot, lambda: text in text_of(console))


async def test_a_panel_may_turn_from_rows_to_lines_and_back(
    daemon: FakeDaemon, watching: Watching
) -> None:
    shown: list[object] = [Rows(["a", "b"], [["x1", 2]])]
    panel = Panel("both", "Both", lambda look: shown[0], "f6")  # type: ignore[arg-type, return-value]

    async with watching(added=added(panel)) as (console, pilot):
        await pilot.press("f6")
        await until(pilot, lambda: "x1" in text_of(console))
        await turn(pilot, console, shown, ["a line\n\x1b[2Jof text"], "a line··[2Jof text")
        await turn(pilot, console, shown, Rows(["c"], [["x3"]]), "x3")
        await turn(pilot, console, shown, Rows(["c"], [["x4"]]), "x4")
        await turn(pilot, console, shown, ["empty"], "empty")
        assert "x4" not in text_of(console)


def test_keys_that_somebody_has_are_not_taken_away() -> None:
    panels = [Panel(f"p{n}", "P", raises, key) for n, key in enumerate(["q", "j", "f6", "f6", ""])]
    console = Console(None, added=added(*panels))  # type: ignore[arg-type]
    extra = console.pages[len(console.PAGES) :]
    assert [page.KEY for page in extra] == ["", "", "f6", "", ""]
    assert {"q", "j", "space", "1", "enter"} <= set(taken_keys(Console))


def has_said(console: Console, messages: int) -> bool:
    return len(said(console)) == messages


async def test_an_action_has_its_key_and_what_it_raises_is_a_message(
    daemon: FakeDaemon, watching: Watching
) -> None:
    def pauses(admin: AdminCalls) -> str:
        admin.call("POST", "/admin/pause", {"seconds": 5})
        return "paused\nfor 5 s"

    def is_refused(admin: AdminCalls) -> str:
        admin.call("POST", "/admin/resume")
        return "never"

    def strays(admin: AdminCalls) -> str:
        admin.call("POST", "/v1/completions")
        return "never"

    def breaks(admin: AdminCalls) -> str:
        raise SystemExit(1)

    refusal = 400, {"error": {"message": "it is not paused"}}
    daemon.answers["POST", "/admin/resume"] = refusal
    actions = tuple(
        Action(run.__name__, f"Do {key}", run, is_destructive=False, key=key)
        for key, run in (("f6", pauses), ("f7", is_refused), ("f8", strays), ("f9", breaks))
    )
    async with watching(added=added(actions=actions)) as (console, pilot):
        for key in ("f6", "f7", "f8", "f9"):
            await pilot.press(key)
            await until(pilot, partial(has_said, console, int(key[1]) - 5))
        assert said(console) == [
            "✓ paused·for 5 s",
            "Do f7 (plugin their): it is not paused",
            "Do f8 (plugin their): /v1/completions is no route of the admin API",
            "Do f9 (plugin their): RuntimeError: SystemExit: 1",
        ]
    assert daemon.calls[0] == ("POST", "/admin/pause", {"seconds": 5})


async def test_read_only_has_no_actions(daemon: FakeDaemon, watching: Watching) -> None:
    def pauses(admin: AdminCalls) -> str:
        admin.call("POST", "/admin/pause")
        return "paused"

    actions = (Action("pause", "Pause it", pauses, is_destructive=False, key="f6"),)
    async with watching(added=added(actions=actions), read_only=True) as (console, pilot):
        await pilot.press("f6")
        await until(pilot, lambda: said(console))
        await pilot.press("colon", *"pause it")
        await pilot.pause(0.3)
        assert "Pause it" not in text_of(console)
    assert daemon.calls == []


@pytest.mark.parametrize(
    "shown",
    ["text", 3, None, Rows([], []), Rows(["a"], [["b", "c"]])],
    ids=["text", "number", "nothing", "no columns", "ragged"],
)
def test_what_cannot_be_drawn_is_refused(shown: object) -> None:
    with pytest.raises(TypeError):
        render_panel(Panel("a", "A", lambda look: shown), {})  # type: ignore[arg-type, return-value]


def test_no_more_than_200_rows_are_drawn() -> None:
    found = render_panel(Panel("a", "A", lambda look: Rows(["n"], [[n] for n in range(500)])), {})
    assert found == PanelContent(("n",), tuple((str(n),) for n in range(200)))


async def test_whatever_is_called_aside_comes_back_or_is_left_behind() -> None:
    assert await call_in_thread(lambda: 3, 1) == 3
    for error in (ValueError("no"), StopIteration("no"), KeyboardInterrupt()):
        with pytest.raises(Exception, match=r"no|KeyboardInterrupt"):
            await call_in_thread(_raising(error), 1)
    gate = threading.Event()
    with pytest.raises(TimeoutError):
        await call_in_thread(gate.wait, 0.05)
    gate.set()
    await asyncio.sleep(0.05)  # it comes back to nobody


def _raising(error: BaseException) -> Callable[[], object]:
    def call() -> object:
        raise error

    return call


def test_names_come_from_where_the_daemon_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "gatewayd.toml"
    file.write_text('[plugins]\nconsole = ["crowd"]\n')
    assert find_plugins(file, {}) == ["crowd"]
    assert find_plugins(None, {"GATEWAYD_CONFIG": str(file)}) == ["crowd"]
    assert find_plugins(file, {"GATEWAYD_PLUGINS__CONSOLE": '["a", "b"]'}) == ["a", "b"]
    assert find_plugins(None, {}) == []
    for wrong in ("crowd", "3", "[1]"):
        with pytest.raises(NoSocket, match="must be a list of names"):
            find_plugins(None, {"GATEWAYD_PLUGINS__CONSOLE": wrong})
