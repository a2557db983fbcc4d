"""Running screen: choices in the running batches, and actions on them."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.binding import Binding

from gatewayd.wire.snapshot import RunningView
from gatewayd_tui.changes import Change, cancel, changing, hold, release, unique_id
from gatewayd_tui.figures import bar, count, millis, percent
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.state import ConsoleState
from gatewayd_tui.widgets.table import Cell, Column, LiveTable

_PHASES = {"prefill": "▷", "decode": "▶", "held": "‖"}


def _phase(row: RunningView) -> Cell:
    text = f"{_PHASES.get(row.phase, '?')} {row.phase}"
    return (text, "yellow") if row.phase == "held" else text


def _done(row: RunningView) -> str:
    """Return the progress of the prefill, then of the generation."""
    if row.phase == "prefill":
        share, of = row.computed_tokens / max(1, row.prompt_tokens), row.prompt_tokens
        return f"{bar(share, 8)} {row.computed_tokens}/{of}"
    share = row.generated_tokens / max(1, row.max_tokens)
    return f"{bar(share, 8)} {row.generated_tokens}/{row.max_tokens}"


def _accepted(row: RunningView) -> float:
    return row.accepted or 0.0


def _preempted(row: RunningView) -> Cell:
    return (f"{row.preemptions}!", "yellow") if row.preemptions else "0"


COLUMNS: list[Column[RunningView]] = [
    Column("id", 14, lambda r: r.id, lambda r: r.id),
    Column("n", 2, lambda r: str(r.choice), None, True, True),
    Column("tenant", 10, lambda r: r.tenant or "-", lambda r: r.tenant),
    Column("class", 8, lambda r: r.priority, lambda r: r.priority, is_wide=True),
    Column("eng", 3, lambda r: str(r.engine), lambda r: r.engine, True, True),
    Column("age", 6, lambda r: millis(r.age_ms), lambda r: r.age_ms, True),
    Column("phase", 9, _phase, lambda r: r.phase),
    Column("tok/s", 5, lambda r: count(r.tokens_per_second), lambda r: r.tokens_per_second, True),
    Column("prompt", 6, lambda r: count(r.prompt_tokens), lambda r: r.prompt_tokens, True, True),
    Column("cached", 6, lambda r: count(r.cached_tokens), lambda r: r.cached_tokens, True, True),
    Column("pages", 5, lambda r: count(r.pages), lambda r: r.pages, True),
    Column("pre", 3, _preempted, lambda r: r.preemptions, True, True),
    Column("acc", 4, lambda r: percent(r.accepted), _accepted, True, True),
    Column("done", 0, _done, lambda r: r.generated_tokens),
]


class RunningScreen(ConsoleScreen):
    """Running choices."""

    NAME = "running"
    KEY = "3"
    TITLE = "Running"

    BINDINGS = [
        Binding("c", "cancel", "Cancel", id="running.cancel", tooltip="Cancel the request"),
        Binding("h", "hold", "Hold", id="running.hold", tooltip="Hold until released"),
        Binding("u", "release", "Release", id="running.release", tooltip="Release a held request"),
        Binding("x", "explain", "Why", id="running.explain", tooltip="Latency breakdown"),
        Binding("l", "logs", "Logs", id="running.logs", tooltip="Log lines of this request"),
    ]

    def body(self) -> ComposeResult:
        """Compose the table."""
        # A request has a row for each of its choices.
        yield LiveTable(COLUMNS, lambda row: f"{unique_id(row)}#{row.choice}")

    def show(self, state: ConsoleState) -> None:
        """Update the running choices."""
        assert state.snapshot is not None  # noqa: S101 - as the base says
        self.list_requests("running", state.snapshot.running, state.snapshot.more_running)

    @changing
    def action_cancel(self) -> None:
        """Cancel the chosen requests with all their choices."""
        self.submit_changes(self._once(cancel))

    @changing
    def action_hold(self) -> None:
        """Hold the chosen requests: they free their rows and pages."""
        self.submit_changes(self._once(hold))

    @changing
    def action_release(self) -> None:
        """Release the chosen requests."""
        self.submit_changes(self._once(release))

    def on_data_table_row_selected(self) -> None:
        """Open the breakdown of the selected request."""
        row = self.query_one(LiveTable).current()
        if row is not None:
            self.console.open_request("explain", unique_id(row))

    def action_explain(self) -> None:
        """Open the breakdown of the chosen request."""
        for row in self.chosen()[:1]:
            self.console.open_request("explain", unique_id(row))

    def action_logs(self) -> None:
        """Open the request's log lines."""
        for row in self.chosen()[:1]:
            self.console.open_request("logs", row.id)

    def _once(self, change: Callable[[RunningView], Change]) -> list[Change]:
        """Return one change per request, even if several of its choices are chosen."""
        return list({unique_id(row): change(row) for row in self.chosen()}.values())
