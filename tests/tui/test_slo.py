"""SLO screen: budget arithmetic by hand, and changed targets."""

from __future__ import annotations

import pytest
from textual.widgets import Input

from gatewayd_tui.screens.slo import attainment, budget_left, verdict
from gatewayd_tui.widgets.form import FormDialog
from tests.tui.conftest import Watching, text_of, until
from tests.tui.fake_daemon import FakeDaemon
from tests.tui.samples import slo, snapshot


@pytest.mark.parametrize(
    ("good", "bad", "kept", "left"),
    [
        (0, 0, None, None),
        (1000, 0, 1.0, 1.0),
        (995, 5, 0.995, 0.5),  # of 10 that may go wrong 5 have
        (990, 10, 0.99, 0.0),
        (980, 20, 0.98, -1.0),
    ],
)
def test_the_budget_is_what_may_go_wrong_less_what_has(
    good: int, bad: int, kept: float | None, left: float | None
) -> None:
    row = slo(good=good, bad=bad)
    assert attainment(row) == kept
    assert budget_left(row) == (None if left is None else pytest.approx(left))


@pytest.mark.parametrize(
    ("burn", "word"),
    [
        ((15.0, 15.0, 1.0), "✖ page"),
        ((15.0, 1.0, 1.0), "▲ burning"),
        ((7.0, 7.0, 7.0), "▲ ticket"),
        ((1.5, 0.5, 0.5), "▲ burning"),
        ((0.9, 0.9, 0.9), "● met"),
    ],
)
def test_the_verdict_asks_for_two_windows(burn: tuple[float, float, float], word: str) -> None:
    row = slo(burn=dict(zip(("5m", "1h", "6h"), burn, strict=True)))
    assert verdict(row)[0] == word


def test_where_nobody_asked_nothing_is_broken() -> None:
    assert verdict(slo(good=0, bad=0))[0] == "- no data"


async def test_goodput_is_what_the_counters_grow_by(daemon: FakeDaemon, watching: Watching) -> None:
    async with watching(start="slo") as (console, pilot):
        later = snapshot(4, slo=[slo(slo="all", target_ms=None, good=1000)])  # 2 s later, 10 more
        daemon.snapshot = later
        await until(pilot, lambda: console.shown.snapshot == later)
        assert "requests/s:  realtime 5.0" in text_of(console)


async def test_targets_are_changed_for_the_class_under_the_cursor(
    daemon: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="slo") as (console, pilot):
        await pilot.press("down", "down", "enter")  # the first row of class standard
        await until(pilot, lambda: isinstance(console.screen, FormDialog))
        assert "SLO targets of class standard" in text_of(console)
        line = console.screen.query_one("#form-ttft_ms", Input)
        assert line.value == "500"
        line.value = "250"
        console.screen.query_one("#form-e2e_ms", Input).value = "9000"
        await pilot.press("enter")
        await until(pilot, lambda: daemon.calls)
    body = {"standard": {"ttft_ms": 250.0, "e2e_ms": 9000.0}}
    assert daemon.calls == [("PATCH", "/admin/slo", body)]


REFUSED = (
    ("ttft_ms", "soon", "ttft_ms is 'soon'; it must be a number above 0 to 86,400,000"),
    ("ttft_ms", "0", "ttft_ms is '0'; it must be a number above 0"),
    ("objective", "1", "objective is '1'; it must be a number from 0.5 below 1"),
)


async def test_what_cannot_be_promised_is_refused_with_a_sentence(
    daemon: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="slo") as (console, pilot):
        for name, text, sentence in REFUSED:
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(console.screen, FormDialog))
            line = console.screen.query_one(f"#form-{name}", Input)
            line.value = text
            await pilot.press("enter")
            await pilot.pause()
            assert sentence in text_of(console)
            assert line.has_focus
            await pilot.press("escape")
            await until(pilot, lambda: not isinstance(console.screen, FormDialog))
    assert daemon.calls == []


async def test_a_form_in_which_nothing_is_changed_calls_nobody(
    daemon: FakeDaemon, watching: Watching
) -> None:
    async with watching(start="slo") as (console, pilot):
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(console.screen, FormDialog))
        await pilot.press("ctrl+s")
        await until(pilot, lambda: not isinstance(console.screen, FormDialog))
    assert daemon.calls == []


async def test_read_only_has_no_form(daemon: FakeDaemon, watching: Watching) -> None:
    async with watching(start="slo", read_only=True) as (console, pilot):
        await pilot.press("enter")
        await pilot.pause()
        assert not isinstance(console.screen, FormDialog)
