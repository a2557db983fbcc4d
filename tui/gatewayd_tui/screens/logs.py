"""Logs screen: the last log lines, by level and by request."""

from __future__ import annotations

import time

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import DataTable

from gatewayd.wire.snapshot import LogView
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.state import ConsoleState
from gatewayd_tui.widgets.table import Cell, Column, LiveTable

LEVELS = ("debug", "info", "warning", "error", "critical")
_GLYPHS = {"warning": "▲", "error": "✖", "critical": "✖"}
_STYLES = {"debug": "dim", "warning": "yellow", "error": "red", "critical": "bold red"}
_MOST = 500
"""Number of lines shown, the newest."""


def _when(line: LogView) -> str:
    return time.strftime("%H:%M:%S", time.localtime(line.unix))


def _level(line: LogView) -> Cell:
    return f"{_GLYPHS.get(line.level, ' ')} {line.level}", _STYLES.get(line.level, "")


COLUMNS: list[Column[LogView]] = [
    Column("time", 8, _when),
    Column("level", 10, _level),
    Column("source", 20, lambda r: r.source, is_wide=True),
    Column("request", 14, lambda r: r.x_request_id or r.request_id or "-"),
    Column("message", 0, lambda r: " ".join(r.message.split())),
]


class LogsScreen(ConsoleScreen):
    """Log lines of the daemon."""

    NAME = "logs"
    KEY = "0"
    TITLE = "Logs"

    BINDINGS = [
        Binding("f", "follow", "Follow", id="logs.follow", tooltip="Follow new lines, or pause"),
        Binding("v", "level", "Level", id="logs.level", tooltip="Set the minimum log level"),
        Binding("r", "request", "Request", id="logs.request", tooltip="Only this request, or all"),
        Binding("o", "jump", "Jump", id="logs.jump", tooltip="Go to the request of this line"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._follows = True
        self._lowest = 0
        self._request = ""

    def body(self) -> ComposeResult:
        """Compose the table."""
        yield LiveTable(COLUMNS, lambda line: str(line.number))

    def show(self, state: ConsoleState) -> None:
        """Update the lines that match level and request."""
        lines = [
            line
            for line in state.logs
            # Levels of other names are always shown.
            if (line.level not in LEVELS or LEVELS.index(line.level) >= self._lowest)
            and self._request in ("", line.request_id, line.x_request_id)
        ]
        table = self.query_one(LiveTable)
        table.set_rows(lines[-_MOST:])
        if self._follows and table.row_count:
            table.move_cursor(row=table.row_count - 1)
        table.set_heading(
            f"{LEVELS[self._lowest]} and above",
            f"only of {self._request} (r for all)" if self._request else "",
            "▼ following" if self._follows else "paused (f follows)",
        )

    def id_of(self, row: LogView) -> str:
        """Return a line's request, or its message."""
        return row.request_id or row.message

    def go_to_request(self, request: str) -> None:
        """Show only lines of a request."""
        # All levels: the request may have no warning at all.
        self._request, self._lowest = request, 0
        self.refresh_state()

    @on(DataTable.RowSelected)
    def show_whole(self) -> None:
        """Show the selected line in full."""
        row = self.query_one(LiveTable).current()
        if row is not None:
            self.notify(row.message, title=f"{_when(row)} {row.level} {row.source}", markup=False)

    def action_follow(self) -> None:
        """Follow new lines, or stay at the cursor."""
        self._follows = not self._follows
        self.refresh_state()

    def action_level(self) -> None:
        """Raise the minimum level; after the last, show all."""
        self._lowest = (self._lowest + 1) % len(LEVELS)
        self.refresh_state()

    def action_request(self) -> None:
        """Show only lines of this line's request, or all again."""
        row = self.query_one(LiveTable).current()
        self._request = "" if self._request or row is None else row.request_id
        self.refresh_state()

    def action_jump(self) -> None:
        """Open the screen that shows the line's request now."""
        row = self.query_one(LiveTable).current()
        if row is not None and row.request_id:
            self.console.open_request(self.console.screen_of(row.request_id), row.request_id)
