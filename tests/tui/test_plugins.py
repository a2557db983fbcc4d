"""Plugins screen: active, installed, and swapped while serving."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from textual.widgets import Input

from gatewayd.wire.plugins import PluginSettings, PluginView, SettingView
from gatewayd_tui.app import Console
from gatewayd_tui.extensions import Extensions, FailedPlugin
from gatewayd_tui.screens.plugins import rows_of
from gatewayd_tui.widgets.choose import Choose
from gatewayd_tui.widgets.form import FormDialog
from tests.tui.conftest import Watching, said, text_of, until
from tests.tui.fake_daemon import FakeDaemon
from tests.tui.samples import snapshot


def view(plugin: str, **changed: Any) -> PluginView:
    kind, _, name = plugin.partition(".")
    fields: dict[str, Any] = {
        "distribution": "gatewayd",
        "version": "0.1.0",
        "state": "installed",
        "summary": f"What {name} does.",
        "reason": "",
        "can_swap": True,
    }
    return PluginView(kind=kind, name=name, **fields | changed)


def setting(name: str, value: object = None, **changed: Any) -> SettingView:
    fields: dict[str, Any] = {
        "doc": f"What {name} is.",
        "takes": "float, above 0",
        "default": 1.0,
        "reload": "hot",
    }
    return SettingView(name=name, value=value, **fields | changed)


INSTALLED = [
    view("scheduler.fair", state="enabled"),
    view("scheduler.priority"),
    view("prefix_cache.radix", state="enabled"),
    view("logits_processor.penalties", state="enabled"),
    view("logits_processor.bias", state="enabled"),
    view("logits_processor.mark"),
    view("executor.local", state="enabled", can_swap=False),
    view("observer.blind", state="failed", reason="cannot be imported", can_swap=False),
]


@pytest.fixture
def stocked(daemon: FakeDaemon) -> FakeDaemon:
    """A daemon with plugins, of which two have settings."""
    answers = daemon.answers
    answers["GET", "/admin/plugins"] = 200, {"plugins": msgspec.to_builtins(INSTALLED)}
    slots = [{"kind": "logits_processor", "names": ["penalties", "bias"], "settings": {}}]
    answers["GET", "/admin/strategies"] = 200, {"slots": slots, "strategies": [], "limits": {}}
    for plugin, settings in {
        "scheduler/priority": [setting("batch", 2.0), setting("realtime")],
        "scheduler/fair": [],
        "logits_processor/mark": [setting("secret", reload="secret", takes="str", default=None)],
    }.items():
        kind, _, name = plugin.partition("/")
        found = PluginSettings(kind=kind, name=name, summary="", settings=settings)
        answers["GET", f"/admin/plugins/{plugin}"] = 200, msgspec.to_builtins(found)
    return daemon


def changes(daemon: FakeDaemon) -> list[tuple[str, str, Any]]:
    return [call for call in daemon.calls if call[0] != "GET"]


async def choose(pilot: Any, console: Console, title: str, *keys: str) -> None:
    await until(pilot, lambda: isinstance(console.screen, Choose) and title in text_of(console))
    await pilot.press(*keys, "enter")


async def fill(pilot: Any, console: Console, title: str, **lines: str) -> None:
    await until(pilot, lambda: isinstance(console.screen, FormDialog) and title in text_of(console))
    for name, text in lines.items():
        console.screen.query_one(f"#form-{name}", Input).value = text
    await pilot.press("ctrl+s")


async def test_what_failed_comes_first_with_its_reason(
    stocked: FakeDaemon, watching: Watching
) -> None:
    added = Extensions(failed=(FailedPlugin("crowd", "cannot be imported: no module named crowd"),))
    async with watching(start="plugins", added=added) as (console, pilot):
        await until(pilot, lambda: "observer" in text_of(console))
        rows = [line for line in text_of(console).splitlines() if "✖ failed" in line]
        assert "no module named crowd" in rows[0]
        assert "cannot be imported" in rows[1]
        assert "max_batch_tokens 512" in text_of(console)
        assert "● active" in text_of(console)


async def test_with_more_rows_than_lines_no_number_is_cut(
    daemon: FakeDaemon, watching: Watching
) -> None:
    (one,) = snapshot().strategies
    rows = [msgspec.structs.replace(one, name=f"s{n}", longest_us=19_123.0) for n in range(60)]
    daemon.snapshot = snapshot(strategies=rows)
    async with watching(size=(80, 24), start="plugins") as (console, _):
        lines = [line for line in text_of(console).splitlines() if "● active" in line]
        assert len(lines) > 5
        assert all("19.1k" in line for line in lines)


def test_a_part_of_the_console_that_failed_here_is_listed_once() -> None:
    rows = rows_of([view("console.crowd"), view("scheduler.fair")], [FailedPlugin("crowd", "why")])
    assert [(row.kind, row.name, row.state) for row in rows] == [
        ("console", "crowd", "failed"),
        ("scheduler", "fair", "installed"),
    ]


async def test_a_strategy_is_swapped_by_kind_name_and_settings(
    stocked: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="plugins") as (console, pilot):
        await pilot.press("c")
        await choose(pilot, console, "Which kind of strategy?", "down", "down")
        await choose(pilot, console, "Which scheduler?", "down")
        await until(pilot, lambda: isinstance(console.screen, FormDialog))
        lines = {each.id: (each.value, each.placeholder) for each in console.screen.query(Input)}
        assert lines["form-batch"][0] == "2"
        assert lines["form-realtime"] == ("", "float, above 0; default 1.0; hot")
        await fill(pilot, console, "Settings of scheduler priority", realtime="20")
        await until(pilot, lambda: changes(stocked))
    body = {"name": "priority", "settings": {"realtime": 20}}
    assert changes(stocked) == [("PUT", "/admin/strategies/scheduler", body)]


async def test_one_without_settings_is_swapped_at_once_and_some_kinds_may_be_empty(
    stocked: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="plugins") as (console, pilot):
        await pilot.press("c")
        await choose(pilot, console, "Which kind of strategy?", "down", "down")
        await choose(pilot, console, "Which scheduler?")
        await until(pilot, lambda: len(changes(stocked)) == 1)
        await pilot.press("c")
        await choose(pilot, console, "Which kind of strategy?", "down")
        await choose(pilot, console, "Which prefix_cache?", "down")
        await until(pilot, lambda: len(changes(stocked)) == 2)
    assert changes(stocked) == [
        ("PUT", "/admin/strategies/scheduler", {"name": "fair", "settings": {}}),
        ("PUT", "/admin/strategies/prefix_cache", {"name": "none", "settings": {}}),
    ]


async def test_a_chain_is_a_list_and_who_comes_in_has_settings(
    stocked: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="plugins") as (console, pilot):
        await pilot.press("c")
        await choose(pilot, console, "Which kind of strategy?")
        await until(pilot, lambda: isinstance(console.screen, FormDialog))
        assert console.screen.query_one(Input).value == "penalties bias"
        await fill(pilot, console, "Which logits_processors?", strategies="bias mark")
        await fill(pilot, console, "Settings of logits_processor mark", secret="a b")
        await until(pilot, lambda: changes(stocked))
    body = {"name": ["bias", "mark"], "settings": {"mark": {"secret": "a b"}}}
    assert changes(stocked) == [("PUT", "/admin/strategies/logits_processor", body)]


async def test_whoever_leaves_on_the_way_changes_nothing(
    stocked: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="plugins") as (console, pilot):
        await pilot.press("c")
        await choose(pilot, console, "Which kind of strategy?", "down", "down")
        await choose(pilot, console, "Which scheduler?", "down")
        await until(pilot, lambda: isinstance(console.screen, FormDialog))
        await pilot.press("escape")
        await pilot.pause()
    assert changes(stocked) == []


async def test_a_refusal_is_shown_as_the_daemon_says_it(
    stocked: FakeDaemon, watching: Watching
) -> None:
    sentence = "[scheduler.priority] batch is 'x': it should be a valid number"
    answer = 400, {"error": {"message": sentence}}
    stocked.answers["PUT", "/admin/strategies/scheduler"] = answer
    async with watching(start="plugins") as (console, pilot):
        await pilot.press("c")
        await choose(pilot, console, "Which kind of strategy?", "down", "down")
        await choose(pilot, console, "Which scheduler?", "down")
        await fill(pilot, console, "Settings of scheduler priority", batch="x")
        await until(pilot, lambda: said(console))
        assert said(console) == [f"set scheduler to priority: {sentence}"]


async def test_limits_are_changed_from_what_they_are(
    stocked: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="plugins") as (console, pilot):
        await pilot.press("m")
        await until(pilot, lambda: isinstance(console.screen, FormDialog))
        assert console.screen.query_one("#form-max_batch_tokens", Input).value == "512"
        await fill(pilot, console, "Limits", max_waiting_requests="8", strategy_budget_ms="2.5")
        await until(pilot, lambda: changes(stocked))
    body = {"max_waiting_requests": 8, "strategy_budget_ms": 2.5}
    assert changes(stocked) == [("PATCH", "/admin/limits", body)]


async def test_a_limit_that_is_no_number_is_refused_with_a_sentence(
    stocked: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="plugins") as (console, pilot):
        await pilot.press("m")
        await fill(pilot, console, "Limits", max_batch_tokens="many")
        await pilot.pause()
        assert "max_batch_tokens is 'many'; it must be a whole number" in text_of(console)
    assert changes(stocked) == []


async def test_where_nothing_can_be_asked_it_says_why(
    daemon: FakeDaemon, watching: Watching
) -> None:
    daemon.answers["GET", "/admin/plugins"] = 404, {"error": {"message": "no such route"}}
    async with watching(start="plugins") as (console, pilot):
        await until(pilot, lambda: "─no such route─" in text_of(console))
        await pilot.press("c")
        await until(pilot, lambda: said(console) == ["no such route"])
