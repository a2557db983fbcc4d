"""Models screen: the model, its size, and its engines."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Static

from gatewayd.wire.snapshot import EngineView, Snapshot
from gatewayd_tui.changes import changing, load_model, unload_model
from gatewayd_tui.figures import count, duration, size
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
}


def _state(row: EngineView) -> Cell:
    glyph, style = _LOOKS.get(row.state, ("▽", "yellow"))
    return f"{glyph} {row.state}", style


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
    """Model and engines."""

    NAME = "models"
    KEY = "8"
    TITLE = "Models"

    BINDINGS = [
        Binding("l", "load", "Load", id="models.load", tooltip="Start its engines"),
        Binding(
            "u", "unload", "Unload", id="models.unload", tooltip="Stop its engines, free memory"
        ),
    ]

    def body(self) -> ComposeResult:
        """Compose the model's facts and the table of engines."""
        yield Static(id="model")
        yield LiveTable(COLUMNS, self.id_of)

    def id_of(self, row: EngineView) -> str:
        """Return the engine's index."""
        return str(row.index)

    def show(self, state: ConsoleState) -> None:
        """Update the model and its engines."""
        assert state.snapshot is not None  # noqa: S101 - as the base says
        self.query_one("#model", Static).update(model(state.snapshot))
        self.query_one(LiveTable).set_rows(state.snapshot.engines)

    @property
    def _served(self) -> str | None:
        snapshot = self.console.shown.snapshot
        return None if snapshot is None else snapshot.daemon.model

    @changing
    def action_load(self) -> None:
        """Load the model."""
        self.submit_changes([load_model(self._served)] if self._served else [])

    @changing
    def action_unload(self) -> None:
        """Unload the model."""
        self.submit_changes([unload_model(self._served)] if self._served else [])


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
