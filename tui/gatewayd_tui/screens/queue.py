"""Queue screen: waiting requests, their causes, and actions on them."""

from __future__ import annotations

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding

from gatewayd.wire.cause_labels import label
from gatewayd.wire.snapshot import WaitingView
from gatewayd_hooks.scheduling import Priority
from gatewayd_tui.changes import bump, cancel, changing, hold, release, unique_id
from gatewayd_tui.figures import count, millis
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.state import ConsoleState
from gatewayd_tui.widgets.choose import Choose
from gatewayd_tui.widgets.table import Cell, Column, LiveTable

CLASSES = [each.name.lower() for each in Priority]


def _slack(row: WaitingView) -> Cell:
    if row.slack_ms is not None and row.slack_ms < 0:
        return f"!{millis(row.slack_ms)}", "bold red"
    return millis(row.slack_ms)


def _reason(row: WaitingView) -> Cell:
    return ("‖ held: " + row.reason, "yellow") if row.is_held else row.reason


def _word(row: WaitingView) -> Cell:
    return ("‖ held", "yellow") if row.is_held else label(row.cause)


COLUMNS: list[Column[WaitingView]] = [
    Column("id", 14, lambda r: r.id, lambda r: r.id),
    Column("tenant", 10, lambda r: r.tenant or "-", lambda r: r.tenant),
    Column("class", 8, lambda r: r.priority, lambda r: r.priority),
    Column("age", 6, lambda r: millis(r.age_ms), lambda r: r.age_ms, is_number=True),
    # Negated, since numbers sort in descending order: the most urgent come first.
    Column("slack", 7, _slack, lambda r: -(r.slack_ms or 0.0), is_number=True),
    Column("prompt", 6, lambda r: count(r.prompt_tokens), lambda r: r.prompt_tokens, True),
    Column(
        "cached", 6, lambda r: count(r.cached_tokens), lambda r: r.cached_tokens or 0, True, True
    ),
    Column("max", 6, lambda r: count(r.max_tokens), lambda r: r.max_tokens, True, True),
    Column("n", 2, lambda r: str(r.choices), lambda r: r.choices, True, True),
    Column("eng", 3, lambda r: "-" if r.engine is None else str(r.engine), None, True, True),
    Column("waits for", 0, _reason, lambda r: r.cause, short=_word),
]


class QueueScreen(ConsoleScreen):
    """Waiting requests."""

    NAME = "queue"
    KEY = "2"
    TITLE = "Queue"

    BINDINGS = [
        Binding("b", "bump", "Bump", id="queue.bump", tooltip="Move to the front of its class"),
        Binding("B", "bump_class", "Class", id="queue.class", tooltip="Move to another class"),
        Binding("c", "cancel", "Cancel", id="queue.cancel", tooltip="Cancel the request"),
        Binding("h", "hold", "Hold", id="queue.hold", tooltip="Hold until released"),
        Binding("u", "release", "Release", id="queue.release", tooltip="Release a held request"),
        Binding("x", "explain", "Why", id="queue.explain", tooltip="Latency breakdown"),
        Binding("l", "logs", "Logs", id="queue.logs", tooltip="Log lines of this request"),
    ]

    def body(self) -> ComposeResult:
        """Compose the table."""
        yield LiveTable(COLUMNS, unique_id)

    def show(self, state: ConsoleState) -> None:
        """Update the waiting requests."""
        assert state.snapshot is not None  # noqa: S101 - as the base says
        self.list_requests("waiting", state.snapshot.waiting, state.snapshot.more_waiting)

    @changing
    def action_bump(self) -> None:
        """Move the chosen requests to the front of their class."""
        self.submit_changes([bump(row) for row in self.chosen()])

    @changing
    @work
    async def action_bump_class(self) -> None:
        """Move the chosen requests to another class."""
        # Before the dialog, during which rows move under the cursor.
        rows = self.chosen()
        if rows:
            word = await self.app.push_screen_wait(Choose("Move to which class?", CLASSES))
            if word is not None:
                self.submit_changes([bump(row, word) for row in rows])

    @changing
    def action_cancel(self) -> None:
        """Cancel the chosen requests."""
        self.submit_changes([cancel(row) for row in self.chosen()])

    @changing
    def action_hold(self) -> None:
        """Hold the chosen requests."""
        self.submit_changes([hold(row) for row in self.chosen()])

    @changing
    def action_release(self) -> None:
        """Release the chosen requests."""
        self.submit_changes([release(row) for row in self.chosen()])

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
