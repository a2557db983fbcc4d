"""Overview screen: load, latencies, engines, SLOs, tenants and events."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Static

from gatewayd.wire.snapshot import EngineView, Snapshot
from gatewayd_tui.changes import changing, drain, pause, resume
from gatewayd_tui.figures import bar, count, millis, percent, sparkline
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.state import ConsoleState, HistoryPoint, or_zero, rate, rates, share

LATENCIES = ("ttft", "tpot", "e2e")
_BAR = 20
_STYLES = {"ready": "green", "failed": "bold red"}


class OverviewScreen(ConsoleScreen):
    """Overview of the daemon."""

    NAME = "overview"
    KEY = "1"
    TITLE = "Overview"
    # At 24 lines everything fits, down to the last event.
    VERTICAL_BREAKPOINTS = [(0, "-low"), (25, "-high")]

    BINDINGS = [
        Binding("a", "pause", "Pause admission", id="overview.pause"),
        Binding("r", "resume", "Resume", id="overview.resume"),
        Binding("D", "drain", "Drain", id="overview.drain"),
    ]

    def body(self) -> ComposeResult:
        """Compose the text blocks."""
        with VerticalScroll():
            yield Static(id="troubles")
            yield Static(id="load")
            yield Static(id="latency")
            yield Static(id="engines")
            with Horizontal():
                yield Static(id="slo")
                yield Static(id="tenants")
            yield Static(id="events")

    def show(self, state: ConsoleState) -> None:
        """Update the text blocks."""
        snapshot = state.snapshot
        assert snapshot is not None  # noqa: S101 - as the base says
        room = max(12, (self.app.size.width - 48) // 2)
        troubles = self.query_one("#troubles", Static)
        troubles.display = bool(snapshot.daemon.troubles)
        # As Text, here and below: messages may be untrusted, and are never markup.
        troubles.update(
            Text("\n".join(f"✖ {each}" for each in snapshot.daemon.troubles), "bold red")
        )
        self.query_one("#load", Static).update(load(state.history, room))
        self.query_one("#latency", Static).update(latency(state, 2 * room))
        self.query_one("#engines", Static).update(engines(snapshot))
        self.query_one("#slo", Static).update(burning(snapshot))
        self.query_one("#tenants", Static).update(top_tenants(snapshot))
        self.query_one("#events", Static).update(events(state))

    @changing
    def action_pause(self) -> None:
        """Pause admission."""
        self.submit_changes([pause()])

    @changing
    def action_resume(self) -> None:
        """Resume admission."""
        self.submit_changes([resume()])

    @changing
    def action_drain(self) -> None:
        """Drain the daemon."""
        self.submit_changes([drain()])


def load(history: tuple[HistoryPoint, ...], room: int) -> Table:
    """Render rates at the left and levels at the right, each with a sparkline."""
    last = history[-1]
    left = [
        ("requests/s", _requests),
        ("tokens in/s", _prompt),
        ("tokens out/s", _generated),
        ("5xx/s", _errors),
    ]
    right: list[tuple[str, str, list[float], float | None]] = [
        ("running", str(last.running), [float(p.running) for p in history], None),
        ("waiting", str(last.waiting), [float(p.waiting) for p in history], None),
        ("kv used", percent(last.kv_share), [p.kv_share for p in history], 1.0),
        ("cache hits", percent(share(history)), [], None),
    ]
    table = _grid(12, 8, room, 10, 5)
    for (name, of), (level, value, values, most) in zip(left, right, strict=True):
        table.add_row(
            name,
            count(rate(history, of)),
            Text(sparkline(rates(history, of), room), "cyan"),
            level,
            value,
            Text(sparkline(values, room, most), "cyan") if values else "",
        )
    table.add_row(*_machines(history, room))
    return table


def _machines(history: tuple[HistoryPoint, ...], room: int) -> tuple[str | Text, ...]:
    """Return memory and utilization of the GPUs, or of the processes, as a row."""
    now = history[-1].usage
    used, busy = or_zero(p.usage.used for p in history), or_zero(p.usage.busy for p in history)
    return (
        "gpu memory" if now.is_gpu else "memory",
        now.memory,
        Text(sparkline(used, room, now.total), "cyan"),
        "gpu busy" if now.is_gpu else "cpu cores",
        now.work,
        Text(sparkline(busy, room, 1.0 if now.is_gpu else None), "cyan"),
    )


def latency(state: ConsoleState, room: int) -> Table:
    """Render percentiles of the last minute, and the 95th over time."""
    assert state.snapshot is not None  # noqa: S101 - there is a history
    table = _grid(14, 8, 8, 8)
    table.add_row(Text("last minute", "bold"), "p50", "p95", "p99", Text("p95 over time", "dim"))
    found = {each.name: each for each in state.snapshot.latencies}
    for name in LATENCIES:
        one = found.get(name)
        cells = ("-",) * 3 if one is None else tuple(map(millis, (one.p50, one.p95, one.p99)))
        values = or_zero(p.p95.get(name) for p in state.history)
        table.add_row(name, *cells, Text(sparkline(values, room), "magenta"))
    return table


def engines(snapshot: Snapshot) -> Table:
    """Render a row for each engine."""
    table = _grid(9, 14, _BAR + 6, 7)
    table.add_row(Text("engine", "bold"), "", "kv pages used", "running", "on")
    for engine in snapshot.engines:
        held = engine.held_pages / engine.num_pages if engine.num_pages else 0.0
        table.add_row(
            f"{engine.index}",
            Text(
                f"{_glyph(engine)} {engine.state}", "green" if engine.state == "ready" else "yellow"
            ),
            f"{bar(held, _BAR)} {percent(held)}",
            f"{engine.num_running}/{engine.max_running}",
            Text(_about(engine)),
        )
    return table


def burning(snapshot: Snapshot) -> Table:
    """Render the burn rates of each class's error budget."""
    table = _grid(12, 8, 8, 8)
    table.add_row(Text("slo burn", "bold"), "5m", "1h", "6h")
    for row in snapshot.slo:
        if row.slo == "all":
            cells = [_burn(row.burn.get(window)) for window in ("5m", "1h", "6h")]
            table.add_row(row.priority, *cells)
    if table.row_count == 1:
        table.add_row("-", "", "", "")
    return table


def top_tenants(snapshot: Snapshot) -> Table:
    """Render the tenants with the most requests."""
    table = _grid(16, 8, 8, 10)
    table.add_row(Text("tenants", "bold"), "run", "wait", "tok/min")
    rows = sorted(snapshot.tenants, key=lambda t: (-t.running - t.waiting, -t.tokens, t.tenant))
    for row in rows[:3]:
        table.add_row(Text(row.tenant), str(row.running), str(row.waiting), count(row.tokens))
    if not rows:
        table.add_row("-", "", "", "")
    return table


def events(state: ConsoleState) -> Text:
    """Render the last warnings and errors of the log, or its last lines."""
    text = Text("last events\n", "bold")
    shown = [each for each in state.logs if each.level not in ("debug", "info")] or state.logs
    for each in shown[-4:]:
        text.append(f"{each.level:<8} {each.message}\n", "not bold")
    return text


def _about(engine: EngineView) -> str:
    where = f"{engine.device} {engine.dtype}, {engine.restarts} restarts"
    return where if engine.state == "ready" or not engine.detail else engine.detail


def _glyph(engine: EngineView) -> str:
    return {"ready": "●", "failed": "✖"}.get(engine.state, "◌")


def _burn(value: float | None) -> Text:
    if value is None:
        return Text("-")
    return Text(f"{value:.2f}!" if value > 1 else f"{value:.2f}", "bold red" if value > 1 else "")


def _grid(*widths: int) -> Table:
    table = Table.grid(padding=(0, 1))
    for place, width in enumerate(widths):
        table.add_column(width=width, no_wrap=True, justify="left" if place == 0 else "right")
    table.add_column(no_wrap=True, overflow="ellipsis")
    return table


def _requests(p: HistoryPoint) -> float:
    return p.requests


def _prompt(p: HistoryPoint) -> float:
    return p.prompt_tokens


def _generated(p: HistoryPoint) -> float:
    return p.generated_tokens


def _errors(p: HistoryPoint) -> float:
    return p.errors
