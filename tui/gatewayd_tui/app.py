"""The console: it follows a source of snapshots and shows the state on one screen at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from io import StringIO
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode
from textual.widgets import DataTable, Input, Tree

from gatewayd.wire.snapshot import Snapshot
from gatewayd_tui.changes import is_named
from gatewayd_tui.client import Lost, Source
from gatewayd_tui.messages import ConnectionLost, SnapshotArrived
from gatewayd_tui.palette import Commands, own_bindings
from gatewayd_tui.plugged import Added, run, why
from gatewayd_tui.recording import Recorder, line_of
from gatewayd_tui.screens import SCREENS
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.screens.help import HelpScreen
from gatewayd_tui.screens.panel import screens_of
from gatewayd_tui.state import ConsoleState, advance, lose
from gatewayd_tui.widgets.confirm import Confirm
from gatewayd_tui.widgets.table import LiveTable

INTERVALS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_SOON, _LATE = 0.25, 4.0
"""Seconds between attempts to reach a daemon: the first, and the longest."""
_NOTHING = Added()


class Console(App[None]):
    """See above.

    Args:
        source: a daemon or a recording.
        read_only: no change is offered or made.
        interval: seconds between snapshots.
        recorder: writes every snapshot down.
        start: name of the first screen.
        added: by plugins.
    """

    TITLE = "gatewayd"
    CSS_PATH = "app.tcss"
    COMMANDS = App.COMMANDS | {Commands}
    PAGES: ClassVar[tuple[type[ConsoleScreen], ...]] = SCREENS

    BINDINGS = [
        Binding("q", "quit", "Quit", id="console.quit"),
        Binding("question_mark,f1", "keys", "Keys", key_display="?", id="console.keys"),
        Binding("colon", "command_palette", "Commands", key_display=":", id="console.commands"),
        Binding("p", "freeze", "Freeze", show=False, id="console.freeze"),
        Binding("plus,equals_sign", "slower(1)", "Slower", show=False, id="console.slower"),
        Binding("minus", "slower(-1)", "Faster", show=False, id="console.faster"),
        Binding("t", "change_theme", "Theme", show=False, id="console.theme"),
        Binding("e", "export", "Save this snapshot", show=False, id="console.export"),
        Binding("ctrl+r", "reconnect", "Reconnect", show=False, id="console.reconnect"),
        *(
            Binding(s.KEY, f"open('{s.NAME}')", s.TITLE, show=False, id=f"open.{s.NAME}")
            for s in SCREENS
        ),
    ]

    def __init__(
        self,
        source: Source,
        *,
        read_only: bool = False,
        interval: float = 0.5,
        recorder: Recorder | None = None,
        start: str = "overview",
        added: Added = _NOTHING,
    ) -> None:
        super().__init__()
        self.source = source
        self.added = added
        self.pages = (*self.PAGES, *screens_of(added.panels, taken_keys(type(self))))
        self.interval = interval
        self.is_read_only = read_only
        self._recorder = recorder
        self._start = start
        self._state = ConsoleState()
        self._frozen: ConsoleState | None = None

    @property
    def shown(self) -> ConsoleState:
        """What screens show: the last state, or the frozen one."""
        return lose(self._frozen, self._state.lost) if self._frozen else self._state

    @property
    def can_change(self) -> bool:
        """Whether changes are offered and made."""
        return self.source.can_change and not self.is_read_only

    @property
    def why_not(self) -> str:
        """Why nothing can be changed."""
        return "the console is read-only" if self.is_read_only else "this is a recording"

    def marks(self) -> list[str]:
        """How the console itself stands, for the first line."""
        can = [] if self.can_change else ["read-only" if self.is_read_only else "recording"]
        return [*can, *(["frozen"] if self._frozen else []), f"{self.interval:g}s"]

    def titles(self) -> list[tuple[str, str]]:
        """Keys and titles of the screens; one without a key is found by its name."""
        return [(page.KEY, page.TITLE) for page in self.pages if page.KEY]

    def on_mount(self) -> None:
        """Open the first screen, and begin to watch."""
        for page in self.pages:
            self.add_mode(page.NAME, page)
        self._bind_added()
        self.switch_mode(self._start)
        self.watch_source()

    async def on_unmount(self) -> None:
        """Let go of what is open."""
        await self.source.close()
        if self._recorder is not None:
            self._recorder.close()

    @work(exclusive=True, group="source")
    async def watch_source(self) -> None:
        """Follow the source for good; when it is lost, try again."""
        wait = _SOON
        while True:
            try:
                async for snapshot in self.source.snapshots(self.interval):
                    wait = _SOON
                    self.post_message(SnapshotArrived(snapshot))
                return  # a recording that has been played
            except Lost as error:
                self.post_message(ConnectionLost(str(error)))
            await asyncio.sleep(wait)
            wait = min(_LATE, 2 * wait)

    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        """There is news."""
        self._state = advance(self._state, message.snapshot)
        if self._recorder is not None:
            self._record(self._recorder, message.snapshot)
        self._refresh_page()

    def on_connection_lost(self, message: ConnectionLost) -> None:
        """There is none."""
        self._state = lose(self._state, message.why)
        self._refresh_page()

    def page(self) -> ConsoleScreen | None:
        """The screen that is open, below dialogs."""
        below = next(iter(self._screen_stack), None)
        return below if isinstance(below, ConsoleScreen) and below.is_mounted else None

    async def do(self, name: str, action: str | None) -> None:
        """Open a screen and run one of its actions."""
        await self.switch_mode(name)
        if action is not None:
            await self.run_action(action, self.screen)

    def place_of(self, request: str) -> str:
        """The screen that a request is on now."""
        snapshot = self.shown.snapshot
        if snapshot is not None and any(is_named(row, request) for row in snapshot.running):
            return "running"
        if snapshot is not None and any(is_named(row, request) for row in snapshot.waiting):
            return "queue"
        return "explain"

    @work
    async def visit(self, name: str, request: str) -> None:
        """Open a screen at a request."""
        await self.switch_mode(name)
        page = self.page()
        if page is not None:
            page.look_at(request)

    def action_open(self, name: str) -> None:
        """Go to a screen."""
        self.switch_mode(name)

    @work
    async def action_plugged(self, name: str) -> None:
        """Run an action of a plugin, after a question where something would be lost."""
        found = self.added.action(name)
        if found is None or not self.can_change:
            self.notify(f"not changed: {self.why_not}", severity="warning")
            return
        plugin, action = found
        title = f"{action.title} (plugin {plugin})"
        if action.is_destructive and not await self.push_screen_wait(Confirm([title])):
            return
        try:
            self.notify(f"✓ {await run(action, self.source)}", markup=False)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self.notify(f"{title}: {why(error)}", severity="error", markup=False)

    def action_keys(self) -> None:
        """Show the keys that work here."""
        page = self.page()
        own = [] if page is None else [(page.TITLE, own_bindings(type(page)))]
        every = [b for b in ConsoleScreen.BINDINGS if isinstance(b, Binding)]
        table = [b for c in (LiveTable, DataTable) for b in c.BINDINGS if isinstance(b, Binding)]
        mine = [b for b in self.BINDINGS if isinstance(b, Binding)]
        self.push_screen(HelpScreen([*own, ("Tables", [*every, *table]), ("Everywhere", mine)]))

    def action_freeze(self) -> None:
        """Stand still, or go on; what comes meanwhile is kept."""
        self._frozen = None if self._frozen else self._state
        self._refresh_page()

    def action_slower(self, steps: int) -> None:
        """Take another interval."""
        nearest = min(INTERVALS, key=lambda each: abs(each - self.interval))
        place = INTERVALS.index(nearest) + steps
        self.interval = INTERVALS[max(0, min(len(INTERVALS) - 1, place))]
        self.watch_source()
        self._refresh_page()

    def action_reconnect(self) -> None:
        """Do not wait for the next attempt."""
        self.watch_source()

    def action_export(self) -> None:
        """Save what is shown, for ``--snapshot``."""
        snapshot = self.shown.snapshot
        if snapshot is None:
            return
        name = time.strftime("gatewayd-%Y%m%d-%H%M%S.jsonl", time.localtime(snapshot.unix))
        if self.is_web:  # the browser saves it
            text = StringIO(line_of(snapshot).decode())
            self.deliver_text(text, save_filename=name)
            return
        try:
            with contextlib.closing(Recorder(Path(name))) as file:
                file.put(snapshot)
        except OSError as error:
            told = f"cannot save {name}: {error.strerror or error}"
            self.notify(told, severity="error", markup=False)
        else:
            self.notify(f"saved as {Path.cwd() / name}", markup=False)

    def _record(self, recorder: Recorder, snapshot: Snapshot) -> None:
        """Write a snapshot down; a disk that takes no more ends the recording, not the console."""
        try:
            recorder.put(snapshot)
        except OSError as error:
            recorder.close()
            self._recorder = None
            told = f"recording to {recorder.name} stopped: {error.strerror or error}"
            self.notify(told, severity="error", timeout=60, markup=False)

    def _bind_added(self) -> None:
        """Give plugins the keys that nobody has."""
        used = set(taken_keys(type(self)))
        for page in self.pages[len(self.PAGES) :]:
            if page.KEY:
                self.bind(page.KEY, f"open('{page.NAME}')", description=page.TITLE, show=False)
                used.add(page.KEY)
        for plugin, action in self.added.actions:
            if action.key and action.key not in used:
                name = f"plugged('{plugin}.{action.id}')"
                self.bind(action.key, name, description=action.title, show=False)
                used.add(action.key)

    def _refresh_page(self) -> None:
        page = self.page()
        if page is not None:
            page.refresh_state()


def taken_keys(console: type[Console]) -> list[str]:
    """Every key that the console, one of its screens or a widget has."""
    classes: tuple[type[DOMNode], ...] = (
        console,
        ConsoleScreen,
        *console.PAGES,
        LiveTable,
        DataTable,
        Tree,
        Input,
    )
    bindings = [each for one in classes for each in one.BINDINGS if isinstance(each, Binding)]
    return [key for each in bindings for key in each.key.split(",")] + ["enter", "tab", "escape"]
