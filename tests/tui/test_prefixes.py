"""Prefix tree: opened nodes are fetched once; actions reach one page."""

from __future__ import annotations

from typing import Any

import msgspec
from textual.widgets import Tree

from gatewayd.wire.snapshot import PrefixSummary, PrefixView
from gatewayd_tui.app import Console
from gatewayd_tui.screens.prefixes import label, saved
from gatewayd_tui.widgets.form import FormDialog
from tests.tui.conftest import Watching, said, text_of, until
from tests.tui.fake_daemon import FakeDaemon
from tests.tui.samples import engine, snapshot


def page(number: int, **changed: Any) -> PrefixView:
    fields: dict[str, Any] = {
        "engine": 0,
        "page": number,
        "parent": None,
        "depth": 0,
        "tokens": 16,
        "text": f"You are assistant {number}",
        "tenant": "acme",
        "holders": 2,
        "hits": 10 * number,
        "is_pinned": False,
        "children": 0,
    }
    return PrefixView(**fields | changed)


def route(parent: int | str = "", of: int = 0) -> str:
    return f"/admin/prefixes?engine={of}&parent={parent}&limit=200"


def answer(daemon: FakeDaemon, parent: int | str, *rows: PrefixView, more: int = 0) -> None:
    found = msgspec.to_builtins(PrefixSummary(rows=list(rows), more=more))
    daemon.answers["GET", route(parent)] = (200, found)


def forest(daemon: FakeDaemon) -> None:
    """Two pages begin prompts; the first has two behind it, one of which has another."""
    answer(daemon, "", page(1, children=3), page(2, is_pinned=True))
    answer(daemon, 1, page(3, parent=1, depth=1, children=1), page(4, parent=1, depth=1), more=7)
    answer(daemon, 3, page(5, parent=3, depth=2))


def lines(console: Console) -> list[str]:
    """Those of the tree."""
    text = text_of(console)
    return [line for line in text.splitlines() if "You are" in line or "more" in line]


async def test_only_what_is_opened_is_asked_for(daemon: FakeDaemon, watching: Watching) -> None:
    forest(daemon)
    async with watching(start="prefixes") as (console, pilot):
        await until(pilot, lambda: len(lines(console)) == 2)
        assert daemon.calls == [("GET", route(), None)]
        await pilot.press("down", "down", "space")
        await until(pilot, lambda: len(lines(console)) == 5)
        assert daemon.calls[1:] == [("GET", route(1), None)]
        await pilot.press("space", "space")  # closed and opened again: known
        await pilot.pause()
        assert len(daemon.calls) == 2
        assert "… and 7 more" in text_of(console)


async def test_the_order_may_be_that_of_saved_tokens_and_what_is_open_stays_open(
    daemon: FakeDaemon, watching: Watching
) -> None:
    forest(daemon)
    async with watching(start="prefixes") as (console, pilot):
        await until(pilot, lambda: len(lines(console)) == 2)
        await pilot.press("down", "down", "space")
        await until(pilot, lambda: len(lines(console)) == 5)
        assert "assistant 1" in lines(console)[0]
        await pilot.press("o")
        await until(pilot, lambda: "assistant 2" in (lines(console) or [""])[0])
        await until(pilot, lambda: len(lines(console)) == 5)
        shown = " ".join(lines(console))
        assert shown.index("assistant 4") < shown.index("assistant 3")
        assert "sorted by saved tokens" in text_of(console)


def test_saved_tokens_are_those_that_were_found() -> None:
    assert saved(page(3, tokens=16)) == 16 * 30
    assert saved(page(3, hits=0, holders=3)) == 0


def test_a_label_is_one_line_of_printable_text() -> None:
    text = label(page(1, text="a\n\x1b[31mb", is_pinned=True)).plain
    assert text.startswith("◆ ")
    assert text.endswith("a··[31mb")
    assert "(text is not shown)" in label(page(1, text="")).plain


async def test_pages_are_pinned_unpinned_and_evicted(
    daemon: FakeDaemon, watching: Watching
) -> None:
    forest(daemon)
    daemon.answers["DELETE", "/admin/prefixes/0/1"] = (200, {"pages": 4, "in_use": 1})
    async with watching(start="prefixes") as (console, pilot):
        await until(pilot, lambda: len(lines(console)) == 2)
        await pilot.press("down", "down", "i")
        await until(pilot, lambda: isinstance(console.screen, FormDialog))
        await pilot.press("end", *["backspace"] * 3, *"12h", "enter")
        await until(pilot, lambda: len(daemon.calls) >= 3)
        await pilot.press("u")
        await until(pilot, lambda: len(daemon.calls) >= 5)
        await pilot.press("x", "y")
        await until(pilot, lambda: len(daemon.calls) >= 7)
        await pilot.pause()
        assert "4 pages are free now; 1 are in use and stay" in said(console)
    assert [call for call in daemon.calls if call[0] != "GET"] == [
        ("PUT", "/admin/prefixes/0/1/pin", {"seconds": 43_200}),
        ("PUT", "/admin/prefixes/0/1/pin", {"seconds": 0}),
        ("DELETE", "/admin/prefixes/0/1", None),
    ]


async def test_a_pin_that_is_too_long_is_refused_with_a_sentence(
    daemon: FakeDaemon, watching: Watching
) -> None:
    forest(daemon)
    async with watching(start="prefixes") as (console, pilot):
        await until(pilot, lambda: len(lines(console)) == 2)
        await pilot.press("down", "down", "i")
        await until(pilot, lambda: isinstance(console.screen, FormDialog))
        await pilot.press("0", "0", "0", "0", "enter")
        await pilot.pause()
        assert "it must be seconds from 1 to 604,800" in text_of(console)
    assert [call for call in daemon.calls if call[0] != "GET"] == []


async def test_without_a_page_under_the_cursor_nothing_is_done(
    daemon: FakeDaemon, watching: Watching
) -> None:
    forest(daemon)
    async with watching(start="prefixes") as (console, pilot):
        await until(pilot, lambda: len(lines(console)) == 2)
        await pilot.press("u", "x", "i")
        await pilot.pause()
        assert said(console) == ["no row is selected"] * 3
    assert [call for call in daemon.calls if call[0] != "GET"] == []


async def test_several_engines_are_closed_at_first(daemon: FakeDaemon, watching: Watching) -> None:
    daemon.snapshot = snapshot(engines=[engine(), engine(index=1)])
    async with watching(start="prefixes") as (console, pilot):
        await pilot.pause()
        assert "engine 1" in text_of(console)
        assert daemon.calls == []
        await pilot.press("down", "down", "space")
        await until(pilot, lambda: daemon.calls == [("GET", route(of=1), None)])


async def test_what_cannot_be_told_is_told(daemon: FakeDaemon, watching: Watching) -> None:
    sentence = "the eviction in use knows no prefixes"
    daemon.answers["GET", route()] = (400, {"error": {"message": sentence}})
    async with watching(start="prefixes") as (console, pilot):
        await until(pilot, lambda: f"✖ {sentence}" in text_of(console))
        assert console.screen.query_one(Tree).root.children[0].is_expanded
