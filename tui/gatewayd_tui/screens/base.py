"""What a screen of the console is."""

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
from gatewayd_tui.client import AdminRefused, Lost, Source
from gatewayd_tui.plugged import Added
from gatewayd_tui.state import ConsoleState
from gatewayd_tui.widgets.confirm import Confirm
from gatewayd_tui.widgets.frame import Banner, ScreenLine, StatusLine
from gatewayd_tui.widgets.table import LiveTable


class ConsoleApp(Protocol):
    """What screens and the palette use of the application.

    Attributes:
        source: a daemon or a recording.
        added: by plugins.
        pages: every screen, those of plugins last.
    """

    source: Source
    added: Added
    pages: tuple[type[ConsoleScreen], ...]

    @property
    def shown(self) -> ConsoleState:
        """What screens show."""

    @property
    def can_change(self) -> bool:
        """Whether changes are offered and made."""

    @property
    def why_not(self) -> str:
        """Why nothing can be changed."""

    def marks(self) -> list[str]:
        """How the console itself stands, for the first line."""

    def titles(self) -> list[tuple[str, str]]:
        """Keys and titles of the screens that have a key."""

    def page(self) -> ConsoleScreen | None:
        """The screen that is open, below dialogs."""

    async def do(self, name: str, action: str | None) -> None:
        """Open a screen and run one of its actions."""

    def place_of(self, request: str) -> str:
        """The screen that a request is on now."""

    def visit(self, name: str, request: str) -> object:
        """Open a screen at a request."""


class ConsoleScreen(Screen[None]):
    """A page with the frame around it. Subclasses fill ``body`` and ``show``.

    Attributes:
        NAME: of the mode, and before the dot in ids of its bindings.
        KEY: that opens it.
        TITLE: for people, one word.
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
        """The application."""
        return cast("ConsoleApp", self.app)

    @abstractmethod
    def body(self) -> ComposeResult:
        """What is between the frame's lines."""

    @abstractmethod
    def show(self, state: ConsoleState) -> None:
        """Bring the body to a state that has a snapshot, in place."""

    def list_requests(self, what: str, rows: Sequence[Any], more: int) -> None:
        """Put rows into the one table, with how many there are above it.

        Args:
            what: they do, for the head.
            rows: of the snapshot.
            more: that are not in it.
        """
        table = self.query_one(LiveTable)
        table.put(rows)
        table.head(f"{what} {len(rows) + more}", f"{more} are not shown" if more else "")

    def look_at(self, request: str) -> None:
        """Go to a request."""
        for table in self.tables():
            keys = [
                table.key_of(row)
                for row in table.shown()
                if request in (self.id_of(row), getattr(row, "request_id", ""))
            ]
            if keys:
                table.go_to(keys[0])

    def id_of(self, row: Any) -> str:  # noqa: ANN401 - a row of this screen's table
        """What ``y`` copies of a row."""
        return str(row.id)

    def compose(self) -> ComposeResult:
        """The frame, and the body in it."""
        yield StatusLine()
        yield ScreenLine()
        yield Banner()
        with Vertical(id="body"):
            yield from self.body()
        yield Input(placeholder="words to match; !word to exclude", id="filter", compact=True)
        yield Footer(compact=True, show_command_palette=False)

    def on_screen_resume(self) -> None:
        """Whoever comes back sees what is so now."""
        self.refresh_state()

    def on_resize(self) -> None:
        """The lines of the frame depend on the width."""
        self.refresh_state()

    def refresh_state(self) -> None:
        """Show the console's state, the frame's lines first."""
        if not self.query(StatusLine):
            return  # not put together yet, or taken apart
        console, state = self.console, self.console.shown
        self.query_one(StatusLine).show(state, console.marks())
        self.query_one(ScreenLine).show(console.titles(), self.KEY, self.app.size.width)
        self.query_one(Banner).show(state.lost)
        self.query_one("#body").set_class(state.lost is not None, "stale")
        if state.snapshot is not None:
            with self.app.batch_update():
                self.show(state)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """No change is offered where none may be made."""
        method = getattr(self, f"action_{action}", None)
        return self.console.can_change or not getattr(method, "is_change", False)

    def tables(self) -> Iterable[LiveTable[Any]]:
        """Every table of the body; the filter is for all, the rest for the first."""
        return self.query(LiveTable)

    def chosen(self) -> list[Any]:
        """The marked rows of a table, or the one under the cursor: of the first, or the focused."""
        found = sorted(self.tables(), key=lambda table: not table.has_focus)
        return found[0].chosen() if found else []

    def made(self, change: Change, answer: Any) -> None:  # noqa: ANN401 - JSON
        """A change was made. For screens that show more than snapshots, or the answer."""

    def ask(self, wanted: Sequence[Change]) -> None:
        """Make changes, after a question where something would be destroyed."""
        if not self.console.can_change:
            self.notify(f"not changed: {self.console.why_not}", severity="warning")
        elif not wanted:
            self.notify("no row is selected", severity="warning")
        else:
            self._make(wanted)

    @work
    async def _make(self, wanted: Sequence[Change]) -> None:
        if any(change.destroys for change in wanted):
            titles = [change.title for change in wanted]
            if not await self.app.push_screen_wait(Confirm(titles)):
                return
        for change in wanted:
            try:
                answer = await self.console.source.call(change.method, change.route, change.body)
            except (Lost, AdminRefused) as error:
                self.notify(f"{change.title}: {error}", severity="error", markup=False)
            else:
                self.notify(f"✓ {change.title}", markup=False)
                self.made(change, answer)

    def action_filter(self) -> None:
        """Ask for words."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.focus()

    def action_leave(self) -> None:
        """Leave the filter, or take its words away."""
        box = self.query_one("#filter", Input)
        box.value = ""
        box.display = False
        for table in self.tables():
            table.focus()
            break

    def action_yank(self) -> None:
        """Copy ids."""
        ids = [self.id_of(row) for row in self.chosen()]
        if ids:
            self.app.copy_to_clipboard("\n".join(ids))
            self.notify(f"copied {', '.join(ids)}", markup=False)

    @on(Input.Changed, "#filter")
    def filter_tables(self, event: Input.Changed) -> None:
        """Words are looked for as they are typed."""
        for table in self.tables():
            table.set_filter(event.value)

    @on(Input.Submitted, "#filter")
    def end_filter(self, event: Input.Submitted) -> None:
        """The words stay, the cursor goes back to the rows."""
        event.input.display = bool(event.value)
        for table in self.tables():
            table.focus()
            break
