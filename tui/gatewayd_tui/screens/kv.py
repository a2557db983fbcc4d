"""KV screen: map of the page pool, pages by tenant, hit rate and evictions."""

from __future__ import annotations

from typing import Any, NamedTuple

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Static

from gatewayd.wire.snapshot import EngineView, KvView, Snapshot
from gatewayd_tui.changes import Change, changing, evict_tenant, eviction_message, reset_cache
from gatewayd_tui.figures import count, percent, size
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.state import ConsoleState, rate, share
from gatewayd_tui.widgets.heat import STATES, HeatMap, by_state, by_tenant, color, letter
from gatewayd_tui.widgets.table import Cell, Column, LiveTable


class TenantPages(NamedTuple):
    """Tenant with its pages in the shown pool.

    Attributes:
        place: index of the tenant on the map.
        id: the tenant.
        pages: held or cached.
        share: of the pool.
    """

    place: int
    id: str
    pages: int
    share: float


def _mark(row: TenantPages) -> Cell:
    return letter(row.place), f"bold {color(row.place)}"


COLUMNS: list[Column[TenantPages]] = [
    Column("", 2, _mark),
    Column("tenant", 24, lambda r: r.id, lambda r: r.id),
    Column("pages", 10, lambda r: count(r.pages), lambda r: r.pages, is_number=True),
    Column("of pool", 8, lambda r: percent(r.share), None, is_number=True),
    Column("", 0, lambda r: ""),
]


class KvScreen(ConsoleScreen):
    """KV page pool of one engine."""

    NAME = "kv"
    KEY = "4"
    TITLE = "KV"

    BINDINGS = [
        Binding("c", "color", "By tenant", id="kv.color", tooltip="Color by tenant, or by state"),
        Binding("left_square_bracket", "engine(-1)", "Previous engine", show=False, id="kv.before"),
        Binding("right_square_bracket", "engine(1)", "Next engine", show=False, id="kv.next"),
        Binding("x", "evict", "Evict tenant", id="kv.evict", tooltip="Evict its cached pages"),
        Binding("X", "reset", "Reset cache", id="kv.reset", tooltip="Evict all cached pages"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._engine = 0
        self._is_by_tenant = False

    def body(self) -> ComposeResult:
        """Compose totals, map and tenants."""
        yield Static(id="kv-totals")
        yield HeatMap(id="kv-map")
        yield LiveTable(COLUMNS, lambda row: row.id, id="kv-tenants")

    def show(self, state: ConsoleState) -> None:
        """Update the pool of the selected engine."""
        assert state.snapshot is not None  # noqa: S101 - as the base says
        pools = state.snapshot.kv
        heat, table = self.query_one(HeatMap), self.query_one(LiveTable)
        if not pools:
            self.query_one("#kv-totals", Static).update("no engine reports its KV pages")
            heat.set_cells([])
            table.set_rows([])
            return
        # Wraps around, also if there are fewer engines than before.
        self._engine %= len(pools)
        view = pools[self._engine]
        looks = by_tenant if self._is_by_tenant else by_state
        heat.set_cells(looks(view.cells, view.owners))
        table.set_rows(holders(view))
        table.border_title = "tenants"
        self.query_one("#kv-totals", Static).update(totals(state, view))

    def action_color(self) -> None:
        """Switch between coloring by state and by tenant."""
        self._is_by_tenant = not self._is_by_tenant
        self.refresh_state()

    def action_engine(self, step: int) -> None:
        """Select another engine."""
        self._engine += step
        self.refresh_state()

    def change_applied(self, change: Change, answer: Any) -> None:  # noqa: ANN401 - JSON
        """Notify the number of evicted pages."""
        said = eviction_message(answer)
        if said is not None:
            self.notify(said)

    @changing
    def action_evict(self) -> None:
        """Evict the cached pages of the chosen tenants."""
        self.submit_changes([evict_tenant(row.id) for row in self.chosen()])

    @changing
    def action_reset(self) -> None:
        """Evict all cached pages."""
        self.submit_changes([reset_cache()])


def holders(view: KvView) -> list[TenantPages]:
    """Return the tenants of a pool, the largest first."""
    pool = pages_of(view)
    places = {tenant: index for index, tenant in enumerate(view.tenants)}
    rows = [
        TenantPages(places[tenant], tenant, pages, pages / pool if pool else 0.0)
        for tenant, pages in view.by_tenant.items()
        if tenant in places
    ]
    return sorted(rows, key=lambda row: (-row.pages, row.id))


def pages_of(view: KvView) -> int:
    """Return the number of pages of the pool."""
    return view.free + view.cached + view.active + view.shared + view.pinned


def totals(state: ConsoleState, view: KvView) -> Text:
    """Render three lines: the pool, pages by state with their glyphs, rates and tiers."""
    assert state.snapshot is not None  # noqa: S101 - there is a pool
    pool = pages_of(view)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"engine {view.engine}", "bold")
    held = (pool - view.free - view.cached) / pool if pool else 0.0
    text.append(f"  {count(pool)} pages{_bytes(state.snapshot, view, pool)}, {percent(held)} used")
    if view.pages_per_cell > 1:
        text.append(f", {view.pages_per_cell} per cell")
    if len(state.snapshot.kv) > 1:
        text.append(f"  [ ] next of {len(state.snapshot.kv)} engines", "dim")
    text.append("\n")
    for glyph, name, style in STATES.values():
        pages = getattr(view, name)
        text.append(f"{glyph} ", style)
        text.append(f"{name} {count(pages)}   ")
    text.append("\n")
    evicted = rate(state.history, lambda point: point.evictions)
    text.append(f"cache hits {percent(share(state.history))}   evictions {count(evicted)}/s")
    for tier, pages in view.tiers.items():
        text.append(f"   tier {tier} {count(pages)}")
    return text


def _bytes(snapshot: Snapshot, view: KvView, pool: int) -> str:
    found: list[EngineView] = [e for e in snapshot.engines if e.index == view.engine]
    return f", {size(pool * found[0].page_bytes)}" if found and found[0].page_bytes else ""
