"""Why screen: newest or slowest requests, and the latency breakdown of one."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Static

from gatewayd.wire.cause_labels import label
from gatewayd.wire.requests import Explanation
from gatewayd_tui.changes import Request, has_id, unique_id
from gatewayd_tui.client import AdminRefused, DaemonUnreachable
from gatewayd_tui.figures import millis
from gatewayd_tui.queries import FinishedRequest, explanation_of, requests
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.state import ConsoleState
from gatewayd_tui.waterfall import markdown, relative_to_median, render_breakdown
from gatewayd_tui.widgets.table import Cell, Column, LiveTable

_ORDERS = ("newest", "slowest")


def _most(row: FinishedRequest) -> str:
    """Return the error of a request, or the cause of most of its time."""
    return row.error or label(row.cause, row.strategy)


def _outcome(row: FinishedRequest) -> Cell:
    if row.outcome == "refused":
        return row.outcome, "yellow"
    return (f"✖ {row.outcome}", "red") if row.outcome == "error" else row.outcome


COLUMNS: list[Column[FinishedRequest]] = [
    Column("id", 14, lambda r: r.id, lambda r: r.id),
    Column("endpoint", 20, lambda r: r.endpoint, lambda r: r.endpoint, is_wide=True),
    Column("class", 8, lambda r: r.priority, lambda r: r.priority),
    Column("outcome", 8, _outcome, lambda r: r.outcome),
    Column("took", 7, lambda r: millis(r.ms), lambda r: r.ms, is_number=True),
    Column("ttft", 7, lambda r: millis(r.ttft_ms), lambda r: r.ttft_ms or 0.0, is_number=True),
    Column("main cause", 0, _most, _most),
]


class ExplainScreen(ConsoleScreen):
    """Latency breakdowns; an unfinished request is shown as it is, and explained when it ends."""

    NAME = "explain"
    KEY = "w"
    TITLE = "Why"

    BINDINGS = [
        Binding("o", "order", "Order", id="explain.order", tooltip="Newest or slowest first"),
        Binding("J", "copy_json", "Copy JSON", id="explain.json"),
        Binding("M", "copy_markdown", "Copy Markdown", id="explain.markdown"),
        Binding("l", "logs", "Logs", id="explain.logs", tooltip="The log lines of this request"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._order = _ORDERS[0]
        self._ended = -1.0
        self._under: str | None = None
        self._wanted: str | None = None
        self._found: Explanation | None = None

    def body(self) -> ComposeResult:
        """Compose the list above, and one breakdown below."""
        yield LiveTable(COLUMNS, unique_id)
        with VerticalScroll(id="picture", can_focus=False):
            yield Static("no request is selected")

    def show(self, state: ConsoleState) -> None:
        """Reload the list when requests have finished, and refresh an unfinished one."""
        # The list is a query: made when requests have ended, not for each snapshot.
        if state.history[-1].requests != self._ended:
            self._ended = state.history[-1].requests
            self._list()
        if self._wanted is not None and not self._is_found(self._wanted):
            self._explain(self._wanted)

    def go_to_request(self, request: str) -> None:
        """Show the breakdown of a request."""
        self._wanted = request
        self._explain(request)

    @on(DataTable.RowHighlighted)
    def explain_row(self) -> None:
        """Show the request under the cursor, if the user has moved it."""
        table = self.query_one(LiveTable)
        row, before = table.current(), self._under
        if row is None or unique_id(row) == before:
            return
        self._under = unique_id(row)
        # The highlight also moves when the row under it leaves the list: then nothing is chosen.
        is_moved = any(unique_id(each) == before for each in table.shown())
        if self._wanted in (None, before) or is_moved:
            self.go_to_request(self._under)

    def action_order(self) -> None:
        """Switch the order, and start at its first request."""
        self._order = _ORDERS[1 - _ORDERS.index(self._order)]
        self._wanted = self._under = None
        self.query_one(LiveTable).set_rows([])
        self._list()

    def action_copy_json(self) -> None:
        """Copy the breakdown as JSON."""
        self._copy("JSON", lambda found: msgspec.json.encode(found).decode())

    def action_copy_markdown(self) -> None:
        """Copy the breakdown as Markdown."""
        self._copy("Markdown", markdown)

    def action_logs(self) -> None:
        """Open the request's log lines."""
        if self._found is not None:
            self.console.open_request("logs", self._found.id)
        elif self._wanted is not None:
            self.console.open_request("logs", client_id_of(self.console.shown, self._wanted))

    def _is_found(self, request: str) -> bool:
        return self._found is not None and request in (self._found.id, self._found.request_id)

    def _copy(self, what: str, written: Callable[[Explanation], str]) -> None:
        if self._found is None:
            self.notify("there is no latency breakdown to copy yet", severity="warning")
        else:
            self.app.copy_to_clipboard(written(self._found))
            self.notify(f"copied {self._found.id} as {what}", markup=False)

    @work(exclusive=True, group="list")
    async def _list(self) -> None:
        table = self.query_one(LiveTable)
        try:
            rows = await requests(self.console.calls, self._order)
        except (DaemonUnreachable, AdminRefused) as error:
            table.set_heading(str(error))
            return
        table.set_heading(f"the {self._order} requests")
        table.set_rows(rows)
        if self._wanted is None and rows:
            self.go_to_request(unique_id(rows[0]))

    @work(exclusive=True, group="explain")
    async def _explain(self, request: str) -> None:
        place = self.query_one("#picture Static", Static)
        try:
            found = await explanation_of(self.console.calls, request)
        except (DaemonUnreachable, AdminRefused) as error:
            # Not finished, or not recorded any more: shown as the snapshot has it, if it has.
            self._found = None
            place.update(render_unfinished(self.console.shown, request) or Text(str(error)))
            return
        self._found = found
        rows = self.query_one(LiveTable).shown()
        usual = relative_to_median(
            found.ms, [row.ms for row in rows if row.priority == found.priority]
        )
        place.update(render_breakdown(found, self.app.size.width - 4, usual))


def client_id_of(state: ConsoleState, request: str) -> str:
    """Return the client's id of a request, as log lines have it, by any of its ids."""
    snapshot = state.snapshot
    rows: list[Request] = [] if snapshot is None else [*snapshot.running, *snapshot.waiting]
    return next((row.id for row in rows if has_id(row, request)), request)


def render_unfinished(state: ConsoleState, request: str) -> Text | None:
    """Render an unfinished request; None if it is neither running nor waiting."""
    snapshot = state.snapshot
    if snapshot is None:
        return None
    runs = [row for row in snapshot.running if has_id(row, request)]
    waits = [row for row in snapshot.waiting if has_id(row, request)]
    lines = [
        f"choice {row.choice}: {row.phase}, {row.computed_tokens} tokens computed, "
        f"{row.generated_tokens}/{row.max_tokens} generated, {row.preemptions} preemptions, "
        f"now {label(row.cause)}"
        for row in runs
    ]
    lines += [f"waiting {millis(row.age_ms)}; {row.reason}" for row in waits]
    names = [row.id for row in runs] + [row.id for row in waits]
    if not names:
        return None
    head = f"{names[0]} has not finished; its latency breakdown follows then"
    return Text("\n".join([head, "", *lines]))
