"""KV map: a character per page, redrawn only on change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd.wire.snapshot import KvView
from gatewayd_tui.app import Console
from gatewayd_tui.screens.kv import holders
from gatewayd_tui.widgets.heat import STATES, HeatMap, by_state, by_tenant, color, letter
from tests.tui.conftest import Watching, said, text_of, until
from tests.tui.fake_daemon import FakeDaemon
from tests.tui.samples import kv, snapshot


def drawn(console: Console) -> str:
    """What the map shows, its lines joined."""
    heat = console.screen.query_one(HeatMap)
    lines = [heat.render_line(y).text.rstrip() for y in range(heat.virtual_size.height)]
    return "".join(lines)


async def test_every_page_has_its_character(watching: Watching) -> None:
    async with watching(size=(80, 24), start="kv") as (console, _):
        shown = drawn(console)
        for cell, (glyph, _, _) in STATES.items():
            assert shown.count(glyph) == kv().cells.count(cell)


async def test_by_tenant_each_has_a_letter_capital_where_it_is_held(watching: Watching) -> None:
    async with watching(start="kv") as (console, pilot):
        await pilot.press("c")
        await pilot.pause()
        pairs = list(zip(kv().cells, kv().owners, strict=True))
        shown = drawn(console)
        for index, name in enumerate("ab"):
            cached = sum(pair == ("c", str(index)) for pair in pairs)
            held = sum(cell in "asp" and owner == str(index) for cell, owner in pairs)
            assert (shown.count(name), shown.count(name.upper())) == (cached, held)
        await pilot.press("c")
        await pilot.pause()
        assert "█" in drawn(console)


async def test_a_change_of_a_page_draws_one_line_anew(
    daemon: FakeDaemon, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(start="kv") as (console, pilot):
        lines: list[int] = []
        heat = console.screen.query_one(HeatMap)
        monkeypatch.setattr(heat, "refresh_line", lines.append)
        changed = "a" + kv().cells[1:]
        daemon.snapshot = snapshot(1, kv=[kv(cells=changed, free=499, active=201)])
        await until(pilot, lambda: console.shown.snapshot == daemon.snapshot)
        assert lines == [0]


async def test_a_pool_of_any_size_fits_and_the_next_engine_is_a_key_away(
    daemon: FakeDaemon, watching: Watching
) -> None:
    large = kv(engine=1, cells="c" * 4096, owners="1" * 4096, pages_per_cell=8, tiers={})
    daemon.snapshot = snapshot(kv=[kv(), large])
    async with watching(size=(80, 24), start="kv") as (console, pilot):
        assert "engine 0" in text_of(console)
        await pilot.press("right_square_bracket")
        await pilot.pause()
        assert "engine 1" in text_of(console)
        assert ", 8 per cell" in text_of(console)
        assert drawn(console) == "░" * 4096
        await pilot.resize_terminal(100, 30)
        await pilot.pause()
        assert drawn(console) == "░" * 4096
        await pilot.press("left_square_bracket")
        await pilot.pause()
        assert "engine 0" in text_of(console)


async def test_without_pools_it_says_so(daemon: FakeDaemon, watching: Watching) -> None:
    daemon.snapshot = snapshot(kv=[])
    async with watching(start="kv") as (console, _):
        assert "no engine reports its KV pages" in text_of(console)


async def test_rates_are_those_of_the_counters(daemon: FakeDaemon, watching: Watching) -> None:
    async with watching(start="kv") as (console, pilot):
        later = snapshot(2, samples={'gatewayd_kv_evictions_total{engine="0"}': 60.0})
        daemon.snapshot = later  # a second later
        await until(pilot, lambda: console.shown.snapshot == later)
        assert "evictions 60/s" in text_of(console)
        assert "cache hits 50%" in text_of(console)


@pytest.mark.parametrize(
    ("keys", "route"),
    [("x", "/admin/prefixes?tenant=acme"), ("X", "/admin/prefixes")],
)
async def test_evicting_is_asked_about_and_is_a_call(
    daemon: FakeDaemon, watching: Watching, keys: str, route: str
) -> None:
    daemon.answers["DELETE", route] = 200, {"pages": 9, "in_use": 0}
    async with watching(start="kv") as (console, pilot):
        console.screen.query_one("#kv-tenants").focus()
        await pilot.press(keys)
        await pilot.pause()
        assert "Are you sure?" in text_of(console)
        await pilot.press("n", keys, "y")
        await until(pilot, lambda: len(said(console)) == 2)
        assert said(console)[1] == "9 pages are free now"
    assert daemon.calls == [("DELETE", route, None)]


CELLS = st.text(alphabet=[*STATES, "?"], max_size=60)
OWNERS = st.text(alphabet=[" ", *map(chr, range(48, 48 + 200))], min_size=60, max_size=60)


@given(CELLS, OWNERS)
def test_every_cell_is_one_column_wide_whatever_comes(cells: str, owners: str) -> None:
    for looks in (by_state(cells, owners), by_tenant(cells, owners)):
        assert [len(glyph) for glyph, _ in looks] == [1] * len(cells)


def test_letters_and_colors_are_unlike_for_many_tenants() -> None:
    assert len({(letter(each), color(each)) for each in range(104)}) == 104


def test_tenants_are_the_largest_first_and_a_share_of_the_pool() -> None:
    view: KvView = kv()
    assert [(row.id, row.pages, row.share) for row in holders(view)] == [
        ("acme", 350, 0.35),
        ("globex", 150, 0.15),
    ]
