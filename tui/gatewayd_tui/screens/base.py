"""Base class of the console's screens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol, cast

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import Screen
from textual.widgets import Footer, Input

from gatewayd_tui.changes import Change
from gatewayd_tui.client import AdminRefused, Calls, DaemonUnreachable
from gatewayd_tui.extensions import Extensions
from gatewayd_tui.state import ConsoleState
from gatewayd_tui.widgets.confirm import Confirm
from gatewayd_tui.widgets.frame import Banner, ScreenLine, StatusLine
from gatewayd_tui.widgets.table import LiveTable


class ConsoleApp(Protocol):
    """Interface of the application for screens and palette.

    Attributes:
        added: panels and actions of plugins.
        pages: all screens, those of plugins last.
    """

    added: Extensions
    pages: tuple[type[ConsoleScreen], ...]

    @property
    def shown(self) -> ConsoleState:
        """State that screens show."""

    @property
    def calls(self) -> Calls:
        """Calls about the model that screens show."""

    def switch_model(self, name: str) -> None:
        """Follow another model of the daemon."""

    @property
    def can_change(self) -> bool:
        """Whether changes are enabled."""

    @property
    def read_only_reason(self) -> str:
        """Reason why changes are disabled."""

    def status_marks(self) -> list[str]:
        """Return the console's own status for the first line."""

    def titles(self) -> list[tuple[str, str]]:
        """Return keys and titles of the screens that have a key."""

    def page(self) -> ConsoleScreen | None:
        """Return the open screen, below dialogs."""

    async def run_command(self, name: str, action: str | None) -> None:
        """Open a screen and run one of its actions."""

    def screen_of(self, request: str) -> str:
        """Return the name of the screen that shows a request now."""

    def open_request(self, name: str, request: str) -> object:
        """Open a screen and go to a request."""


class ConsoleScreen(Screen[None]):
    """Screen with frame, filter and change actions. Subclasses implement ``body`` and ``show``.

    Attributes:
        NAME: of the mode, and prefix of its binding ids.
        KEY: that opens it.
        TITLE: displayed, one word.
    """

    NAME: ClassVar[str]
    KEY: ClassVar[str]
    TITLE: ClassVar[str]

    BINDINGS = [
        Binding("slash", "filter", "Filter", key_display="/", show=False, id="screen.filter"),
        Binding("escape", "leave", "Back", show=False, id="screen.back"),
        Binding("y", "yank", "Copy id", show=False, id="screen.yank"),
    ]

    @property
    def console(self) -> ConsoleApp:
        """Application of the screen."""
        return cast("ConsoleApp", self.app)

    @abstractmethod
    def body(self) -> ComposeResult:
        """Compose the widgets within the frame."""

    @abstractmethod
    def show(self, state: ConsoleState) -> None:
        """Update the body in place to a state that has a snapshot."""

    def list_requests(self, what: str, rows: Sequence[Any], more: int) -> None:
        """Show requests in the screen's table, with their number in its heading.

        Args:
            what: state of the requests, for the heading.
            rows: of the snapshot.
            more: number of further requests that are not in it.
        """
        table = self.query_one(LiveTable)
        table.set_rows(rows)
        table.set_heading(f"{what} {len(rows) + more}", f"{more} are not shown" if more else "")

    def go_to_request(self, request: str) -> None:
        """Move the cursor to a request."""
        for table in self.tables():
            keys = [
                table.key_of(row)
                for row in table.shown()
                if request in (self.id_of(row), getattr(row, "request_id", ""))
            ]
            if keys:
                table.go_to(keys[0])

    def id_of(self, row: Any) -> str:  # noqa: ANN401 - a row of this screen's table
        """Return the id of a row, as copied by ``y``."""
        return str(row.id)

    def compose(self) -> ComposeResult:
        """Compose the frame with the body."""
        yield StatusLine()
        yield ScreenLine()
        yield Banner()
        with Vertical(id="body"):
            yield from self.body()
        yield Input(placeholder="words to match; !word to exclude", id="filter", compact=True)
        yield Footer(compact=True, show_command_palette=False)

    def on_screen_resume(self) -> None:
        """Refresh when the screen is opened again."""
        self.refresh_state()

    def on_resize(self) -> None:
        """Refresh the frame, which depends on the width."""
        self.refresh_state()

    def refresh_state(self) -> None:
        """Update frame and body to the console's state."""
        if not self.query(StatusLine):
            return  # not composed yet, or removed already
        console, state = self.console, self.console.shown
        self.query_one(StatusLine).show(state, console.status_marks())
        self.query_one(ScreenLine).show(console.titles(), self.KEY, self.app.size.width)
        self.query_one(Banner).show(state.lost)
        self.query_one("#body").set_class(state.lost is not None, "stale")
        if state.snapshot is not None:
            # One repaint for all widgets.
            with self.app.batch_update():
                self.show(state)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable change actions if changes are disabled."""
        method = getattr(self, f"action_{action}", None)
        return self.console.can_change or not getattr(method, "is_change", False)

    def tables(self) -> Iterable[LiveTable[Any]]:
        """Return all tables of the body; the filter applies to all of them."""
        return self.query(LiveTable)

    def chosen(self) -> list[Any]:
        """Return the marked rows, or the one under the cursor, of the focused or first table."""
        # Stable: the focused table, or else the first.
        found = sorted(self.tables(), key=lambda table: not table.has_focus)
        return found[0].chosen() if found else []

    def change_applied(self, change: Change, answer: Any) -> None:  # noqa: ANN401 - JSON
        """Handle the answer of a change; overridden by screens that show more than snapshots."""

    def submit_changes(self, wanted: Sequence[Change]) -> None:
        """Apply changes, after confirmation if one is destructive."""
        if not self.console.can_change:
            self.notify(f"not changed: {self.console.read_only_reason}", severity="warning")
        elif not wanted:
            self.notify("no row is selected", severity="warning")
        else:
            self._apply(wanted, self.console.calls)

    @work
    async def _apply(self, wanted: Sequence[Change], calls: Calls) -> None:
        if any(change.destroys for change in wanted):
            titles = [change.title for change in wanted]
            if not await self.app.push_screen_wait(Confirm(titles)):
                return
        # One at a time; a refused one does not keep the others from being applied.
        for change in wanted:
            try:
                # Of the model that was shown when they were submitted.
                answer = await calls.call(change.method, change.route, change.body)
            except (DaemonUnreachable, AdminRefused) as error:
                self.notify(f"{change.title}: {error}", severity="error", markup=False)
            else:
                self.notify(f"✓ {change.title}", markup=False)
                self.change_applied(change, answer)

    def action_filter(self) -> None:
        """Open the filter."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()

    def action_leave(self) -> None:
        """Close and clear the filter."""
        box = self.query_one("#filter", Input)
        box.value = ""
        box.display = False
        for table in self.tables():
            table.focus()
            break

    def action_yank(self) -> None:
        """Copy the ids of the chosen rows."""
        ids = [self.id_of(row) for row in self.chosen()]
        if ids:
            self.app.copy_to_clipboard("\n".join(ids))
            self.notify(f"copied {', '.join(ids)}", markup=False)

    @on(Input.Changed, "#filter")
    def filter_tables(self, event: Input.Changed) -> None:
        """Filter while typing."""
        for table in self.tables():
            table.set_filter(event.value)

    @on(Input.Submitted, "#filter")
    def end_filter(self, event: Input.Submitted) -> None:
        """Keep the filter and focus the table."""
        event.input.display = bool(event.value)
        for table in self.tables():
            table.focus()
            break
