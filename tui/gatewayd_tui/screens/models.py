"""Models screen: all models of the daemon, and the engines of the one that is shown."""

from __future__ import annotations

from typing import Any, NamedTuple

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import DataTable, Static

from gatewayd.wire.models import CatalogueView, ModelRow
from gatewayd.wire.snapshot import EngineView, Snapshot
from gatewayd_tui import queries
from gatewayd_tui.changes import Change, changing, load_model, unload_model
from gatewayd_tui.client import AdminRefused, DaemonUnreachable
from gatewayd_tui.figures import bar, count, duration, percent, size
from gatewayd_tui.machine_usage import usage_of
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.state import ConsoleState
from gatewayd_tui.widgets.table import Cell, Column, LiveTable

_LOOKS = {
    "ready": ("●", "green"),
    "starting": ("◌", "yellow"),
    "restarting": ("◌", "yellow"),
    "failed": ("✖", "bold red"),
    "stopped": ("○", "dim"),
    "unloaded": ("○", "dim"),
    "asleep": ("○", "dim"),
    "loading": ("◌", "yellow"),
    "paused": ("‖", "yellow"),
}
_BAR = 8


class CatalogueRow(NamedTuple):
    """Model of the catalogue.

    Attributes:
        model: its row of ``GET /admin/models``.
        share: of the limit of host or device memory, the larger one; None without limits.
        is_shown: whether the console shows this model.
    """

    model: ModelRow
    share: float | None
    is_shown: bool


def _state(row: EngineView | ModelRow) -> Cell:
    glyph, style = _LOOKS.get(row.state, ("▽", "yellow"))
    return f"{glyph} {row.state}", style


def _name(row: CatalogueRow) -> Cell:
    return f"▸{row.model.name}" if row.is_shown else f" {row.model.name}"


def _bytes(row: CatalogueRow) -> int:
    return row.model.host_bytes + row.model.device_bytes


def _share(row: CatalogueRow) -> Cell:
    return "-" if row.share is None else f"{bar(row.share, _BAR)} {percent(row.share):>4}"


def _load_time(row: CatalogueRow) -> Cell:
    return f"{row.model.load_seconds:.1f}s"


def _requests(row: CatalogueRow) -> Cell:
    return count(row.model.num_requests)


CATALOGUE: list[Column[CatalogueRow]] = [
    Column("model", 0, _name, lambda r: r.model.name),
    Column("also", 12, lambda r: ", ".join(r.model.names) or "-", None, False, True),
    Column("state", 11, lambda r: _state(r.model), lambda r: r.model.state),
    Column("pin", 3, lambda r: "yes" if r.model.is_pinned else "", lambda r: r.model.is_pinned),
    Column("memory", 9, lambda r: size(_bytes(r)), _bytes, True),
    Column("of limit", _BAR + 5, _share, lambda r: r.share or 0.0),
    Column("loads", 5, lambda r: count(r.model.loads), lambda r: r.model.loads, True),
    Column("unloads", 7, lambda r: count(r.model.unloads), lambda r: r.model.unloads, True, True),
    Column("load time", 9, _load_time, lambda r: r.model.load_seconds, True, True),
    Column("requests", 8, _requests, lambda r: r.model.num_requests, True),
    Column(
        "idle", 6, lambda r: duration(r.model.idle_seconds), lambda r: r.model.idle_seconds, True
    ),
]


def _loaded(row: EngineView) -> Cell:
    return f"{row.load_seconds:.1f}s" if row.load_seconds else "-"


COLUMNS: list[Column[EngineView]] = [
    Column("eng", 3, lambda r: str(r.index), lambda r: r.index),
    Column("state", 12, _state, lambda r: r.state),
    Column("device", 8, lambda r: r.device or "-", lambda r: r.device),
    Column("loaded", 7, _loaded, lambda r: r.load_seconds, True),
    Column("up", 7, lambda r: duration(r.uptime_seconds), lambda r: r.uptime_seconds, True),
    Column("lost", 4, lambda r: str(r.restarts), lambda r: r.restarts, True),
    Column("pid", 8, lambda r: "-" if r.pid is None else str(r.pid), None, True, True),
    Column("rows", 7, lambda r: f"{r.num_running}/{r.max_running}", None, True, True),
    Column("step tokens", 11, lambda r: count(r.max_batch_tokens), None, True, True),
    Column(
        "memory", 9, lambda r: usage_of([r]).memory, lambda r: usage_of([r]).used or 0, True, True
    ),
    Column(
        "busy", 5, lambda r: usage_of([r]).work, lambda r: usage_of([r]).busy or 0.0, True, True
    ),
    Column("kv", 9, lambda r: size(r.num_pages * r.page_bytes), lambda r: r.num_pages, True),
    Column("detail", 0, lambda r: r.detail),
]


class ModelsScreen(ConsoleScreen):
    """All models, and the engines of the one that is shown."""

    NAME = "models"
    KEY = "8"
    TITLE = "Models"

    BINDINGS = [
        Binding("l", "load", "Load", id="models.load", tooltip="Start its engines"),
        Binding(
            "u", "unload", "Unload", id="models.unload", tooltip="Stop its engines, free memory"
        ),
        Binding("tab", "app.focus_next", "Next table", show=False, id="models.other"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._is_asked = False
        self._found: CatalogueView | None = None
        self._shown = ""

    def body(self) -> ComposeResult:
        """Compose the models, and facts and engines of the one that is shown."""
        yield LiveTable(CATALOGUE, self.id_of, id="catalogue")
        yield Static(id="model")
        yield LiveTable(COLUMNS, self.id_of, id="engines")

    def id_of(self, row: Any) -> str:  # noqa: ANN401 - a row of either table
        """Return the model's name, or the engine's index."""
        return row.model.name if isinstance(row, CatalogueRow) else str(row.index)

    def show(self, state: ConsoleState) -> None:
        """Update the engines; the models are as of the last query."""
        assert state.snapshot is not None  # noqa: S101 - as the base says
        self.query_one("#model", Static).update(model(state.snapshot))
        self._engines.set_rows(state.snapshot.engines)
        self._show_catalogue()
        # At most one query at a time: a slow daemon gets fewer.
        if not self._is_asked and state.lost is None:
            self._is_asked = True
            self._ask()

    @work(group="catalogue")
    async def _ask(self) -> None:
        try:
            self._found = await queries.catalogue(self.console.calls)
        except (DaemonUnreachable, AdminRefused):
            # A recording has none; that a daemon is gone, the banner says.
            return
        finally:
            self._is_asked = False
        self._show_catalogue()

    def _show_catalogue(self) -> None:
        state, found = self.console.shown, self._found
        table = self._catalogue
        if state.snapshot is not None and found is not None:
            shown = state.snapshot.daemon.model
            table.set_rows(rows_of(found, shown))
            table.set_heading(*memory(found))
            # The cursor begins at the model that is shown; a new table has no rows yet.
            if shown != self._shown and table.go_to(shown):
                self._shown = shown
        is_new = found is not None and not table.display
        table.display = found is not None
        if is_new and self._engines.has_focus:  # where the focus is as long as there is no other
            table.focus()

    def change_applied(self, change: Change, answer: Any) -> None:  # noqa: ANN401 - JSON
        """Show the state after the change."""
        self.refresh_state()

    @on(DataTable.RowSelected, "#catalogue")
    def _show_model(self) -> None:
        row = self._catalogue.current()
        if row is not None:
            self.console.switch_model(row.model.name)

    @changing
    def action_load(self) -> None:
        """Load the chosen models."""
        self.submit_changes([load_model(name) for name in self._chosen_models()])

    @changing
    def action_unload(self) -> None:
        """Unload the chosen models."""
        self.submit_changes([unload_model(name) for name in self._chosen_models()])

    def _chosen_models(self) -> list[str]:
        """Return the chosen models; that of the snapshot where the daemon lists none."""
        if self._found is not None:
            return [row.model.name for row in self._catalogue.chosen()]
        snapshot = self.console.shown.snapshot
        return [] if snapshot is None else [snapshot.daemon.model]

    @property
    def _catalogue(self) -> LiveTable[CatalogueRow]:
        return self.query_one("#catalogue", LiveTable)

    @property
    def _engines(self) -> LiveTable[EngineView]:
        return self.query_one("#engines", LiveTable)


def rows_of(found: CatalogueView, shown: str) -> list[CatalogueRow]:
    """Return the models with their shares of the limits; ``shown`` is that of the console."""
    limits = found.host_limit, found.device_limit
    rows = []
    for each in found.models:
        taken = zip((each.host_bytes, each.device_bytes), limits, strict=True)
        shares = [size / limit for size, limit in taken if limit]
        rows.append(CatalogueRow(each, max(shares, default=None), each.name == shown))
    return rows


def memory(found: CatalogueView) -> list[str]:
    """Return the memory of all loaded models beside the limits, a text for each kind."""
    places = (
        ("host", found.host_bytes, found.host_limit),
        ("device", found.device_bytes, found.device_limit),
    )
    lines = [f"{len(found.models)} models"] if len(found.models) > 1 else ["model"]
    for place, used, limit in places:
        if limit:
            lines.append(f"{place} memory {size(used)} of {size(limit)} {bar(used / limit, _BAR)}")
        elif used:
            lines.append(f"{place} memory {size(used)}")
    return lines


def model(snapshot: Snapshot) -> Text:
    """Render name and sizes of the model, from the first engine that has loaded it."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(snapshot.daemon.model, "bold")
    # All engines have the same model; one that is loading does not know its size yet.
    known = [engine for engine in snapshot.engines if engine.num_parameters]
    ready = sum(engine.state == "ready" for engine in snapshot.engines)
    text.append(f"   {ready} of {len(snapshot.engines)} engines are ready\n")
    if not known:
        text.append("size unknown until an engine has loaded it", "dim")
        return text
    weights = known[0].weight_bytes
    text.append(f"{count(known[0].num_parameters)} parameters as {known[0].dtype}")
    text.append(f", {size(weights)}" if weights else "")
    text.append(f", context {count(known[0].max_model_len)} tokens")
    return text
