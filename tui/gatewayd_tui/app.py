"""Console application: follows a source of snapshots and shows its state on screens."""

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
from gatewayd_tui.changes import has_id
from gatewayd_tui.client import DaemonUnreachable, ModelCalls, Source
from gatewayd_tui.extensions import Extensions, failure_reason, run
from gatewayd_tui.messages import ConnectionLost, SnapshotArrived
from gatewayd_tui.palette import Commands, own_bindings
from gatewayd_tui.recording import Recorder, line_of
from gatewayd_tui.screens import SCREENS
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.screens.help import HelpScreen
from gatewayd_tui.screens.panel import screens_of
from gatewayd_tui.state import ConsoleState, advance, mark_lost
from gatewayd_tui.widgets.choose import Choose
from gatewayd_tui.widgets.confirm import Confirm
from gatewayd_tui.widgets.table import LiveTable

INTERVALS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
_FIRST_RETRY, _LONGEST_RETRY = 0.25, 4.0
"""Seconds between reconnection attempts: the first, and the longest."""
_NOTHING = Extensions()


class Console(App[None]):
    """Console application.

    Args:
        source: a daemon or a recording.
        read_only: disable all changes.
        interval: seconds between snapshots.
        recorder: records every snapshot.
        start: name of the first screen.
        added: panels and actions of plugins.
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
        Binding("N", "model", "Model", show=False, id="console.model"),
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
        added: Extensions = _NOTHING,
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
        """State that screens show: the last one, or the frozen one."""
        return mark_lost(self._frozen, self._state.lost) if self._frozen else self._state

    @property
    def calls(self) -> ModelCalls:
        """Calls about the model that screens show; the daemon's only one is not named."""
        snapshot = self.shown.snapshot
        if snapshot is None:
            return ModelCalls(self.source, self.source.model)
        daemon = snapshot.daemon
        return ModelCalls(self.source, daemon.model if len(daemon.models) > 1 else None)

    @property
    def can_change(self) -> bool:
        """Whether changes are enabled."""
        return self.source.can_change and not self.is_read_only and self._next_model is None

    @property
    def read_only_reason(self) -> str:
        """Reason why changes are disabled."""
        if self._next_model is not None:
            return f"the console switches to the model {self._next_model}"
        return "the console is read-only" if self.is_read_only else "this is a recording"

    @property
    def _next_model(self) -> str | None:
        """Model to which the console switches; None once it shows it."""
        # No change is made meanwhile: a form for a page of the one must not end at the other.
        snapshot, name = self._state.snapshot, self.source.model
        is_shown = snapshot is None or name in (None, snapshot.daemon.model)
        return None if is_shown else name

    def status_marks(self) -> list[str]:
        """Return the console's own status for the first line: read-only, frozen, interval."""
        can = [] if self.source.can_change else ["recording"]
        can = ["read-only"] if self.is_read_only else can
        switching = [] if self._next_model is None else [f"switching to {self._next_model}"]
        return [*can, *switching, *(["frozen"] if self._frozen else []), f"{self.interval:g}s"]

    def titles(self) -> list[tuple[str, str]]:
        """Return keys and titles of the screens that have a key."""
        return [(page.KEY, page.TITLE) for page in self.pages if page.KEY]

    def on_mount(self) -> None:
        """Open the first screen and start following the source."""
        for page in self.pages:
            self.add_mode(page.NAME, page)
        self._bind_added()
        self.switch_mode(self._start)
        self.watch_source()

    async def on_unmount(self) -> None:
        """Close source and recording."""
        await self.source.close()
        if self._recorder is not None:
            self._recorder.close()

    @work(exclusive=True, group="source")
    async def watch_source(self) -> None:
        """Follow the source; reconnect when it is lost."""
        wait = _FIRST_RETRY
        while True:
            try:
                # Started again by every change of the interval: the worker is exclusive.
                async for snapshot in self.source.snapshots(self.interval):
                    # Reset by a snapshot, not by a connection: a daemon may accept one and fail.
                    wait = _FIRST_RETRY
                    self.post_message(SnapshotArrived(snapshot))
                return  # a recording that has been played
            except DaemonUnreachable as error:
                self.post_message(ConnectionLost(str(error)))
            await asyncio.sleep(wait)
            wait = min(_LONGEST_RETRY, 2 * wait)

    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        """Update the state with a snapshot."""
        # Also while the display is frozen, so that the history has no gap.
        self._state = advance(self._state, message.snapshot)
        if self._recorder is not None:
            self._record(self._recorder, message.snapshot)
        self._refresh_page()

    def on_connection_lost(self, message: ConnectionLost) -> None:
        """Mark the state as lost."""
        self._state = mark_lost(self._state, message.why)
        self._refresh_page()

    def page(self) -> ConsoleScreen | None:
        """Return the open screen, below dialogs."""
        # Dialogs are above it on the stack, and must not hide it from new snapshots.
        below = next(iter(self._screen_stack), None)
        return below if isinstance(below, ConsoleScreen) and below.is_mounted else None

    async def run_command(self, name: str, action: str | None) -> None:
        """Open a screen and run one of its actions."""
        # Awaited, since the action is looked up on the screen that is open then.
        await self.switch_mode(name)
        if action is not None:
            await self.run_action(action, self.screen)

    def screen_of(self, request: str) -> str:
        """Return the name of the screen that shows a request now."""
        snapshot = self.shown.snapshot
        if snapshot is not None and any(has_id(row, request) for row in snapshot.running):
            return "running"
        if snapshot is not None and any(has_id(row, request) for row in snapshot.waiting):
            return "queue"
        return "explain"

    @work
    async def open_request(self, name: str, request: str) -> None:
        """Open a screen and go to a request."""
        await self.switch_mode(name)
        page = self.page()
        if page is not None:
            page.go_to_request(request)

    def action_open(self, name: str) -> None:
        """Open a screen."""
        self.switch_mode(name)

    @work
    async def action_plugin_action(self, name: str) -> None:
        """Run an action of a plugin, after confirmation if it is destructive."""
        found = self.added.action(name)
        if found is None or not self.can_change:
            self.notify(f"not changed: {self.read_only_reason}", severity="warning")
            return
        plugin, action = found
        title = f"{action.title} (plugin {plugin})"
        if action.is_destructive and not await self.push_screen_wait(Confirm([title])):
            return
        try:
            self.notify(f"✓ {await run(action, self.calls)}", markup=False)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            self.notify(f"{title}: {failure_reason(error)}", severity="error", markup=False)

    def action_keys(self) -> None:
        """Show the keys of the open screen."""
        page = self.page()
        own = [] if page is None else [(page.TITLE, own_bindings(type(page)))]
        every = [b for b in ConsoleScreen.BINDINGS if isinstance(b, Binding)]
        table = [b for c in (LiveTable, DataTable) for b in c.BINDINGS if isinstance(b, Binding)]
        mine = [b for b in self.BINDINGS if isinstance(b, Binding)]
        self.push_screen(HelpScreen([*own, ("Tables", [*every, *table]), ("Everywhere", mine)]))

    @work
    async def action_model(self) -> None:
        """Ask for the model to show."""
        snapshot = self.shown.snapshot
        names = [] if snapshot is None else snapshot.daemon.models
        if len(names) < 2 or not self.source.can_change:
            reason = "a recording" if not self.source.can_change else "the daemon's only model"
            self.notify(f"no other model can be shown: this is {reason}", severity="warning")
            return
        name = await self.push_screen_wait(Choose("Show the model", names))
        if name is not None:
            self.switch_model(name)

    def switch_model(self, name: str) -> None:
        """Follow another model; the present one stays until the first snapshot of it."""
        snapshot = self._state.snapshot
        if not self.source.can_change or (snapshot is not None and snapshot.daemon.model == name):
            return
        self._frozen = None
        self.source.model = name
        self.watch_source()
        self._refresh_page()

    def action_freeze(self) -> None:
        """Freeze or unfreeze the display; snapshots received meanwhile are kept."""
        self._frozen = None if self._frozen else self._state
        self._refresh_page()

    def action_slower(self, steps: int) -> None:
        """Change the interval by some steps."""
        nearest = min(INTERVALS, key=lambda each: abs(each - self.interval))
        place = INTERVALS.index(nearest) + steps
        self.interval = INTERVALS[max(0, min(len(INTERVALS) - 1, place))]
        self.watch_source()
        self._refresh_page()

    def action_reconnect(self) -> None:
        """Reconnect now instead of waiting for the next attempt."""
        self.watch_source()

    def action_export(self) -> None:
        """Save the shown snapshot as a recording, for ``--snapshot``."""
        snapshot = self.shown.snapshot
        if snapshot is None:
            return
        name = time.strftime("gatewayd-%Y%m%d-%H%M%S.jsonl", time.localtime(snapshot.unix))
        # The working directory is the server's, not that of the browser's user.
        if self.is_web:  # the browser saves it
            text = StringIO(line_of(snapshot).decode())
            self.deliver_text(text, save_filename=name)
            return
        try:
            with contextlib.closing(Recorder(Path(name))) as file:
                file.append(snapshot)
        except OSError as error:
            message = f"cannot save {name}: {error.strerror or error}"
            self.notify(message, severity="error", markup=False)
        else:
            self.notify(f"saved as {Path.cwd() / name}", markup=False)

    def _record(self, recorder: Recorder, snapshot: Snapshot) -> None:
        """Record a snapshot; a write error ends the recording, not the console."""
        try:
            recorder.append(snapshot)
        except OSError as error:
            recorder.close()
            self._recorder = None
            message = f"recording to {recorder.name} stopped: {error.strerror or error}"
            self.notify(message, severity="error", timeout=60, markup=False)

    def _bind_added(self) -> None:
        """Bind the keys of plugins that are not taken."""
        # The console's own keys come first, then panels, then actions in their order.
        used = set(taken_keys(type(self)))
        for page in self.pages[len(self.PAGES) :]:
            if page.KEY:
                self.bind(page.KEY, f"open('{page.NAME}')", description=page.TITLE, show=False)
                used.add(page.KEY)
        for plugin, action in self.added.actions:
            if action.key and action.key not in used:
                name = f"plugin_action('{plugin}.{action.id}')"
                self.bind(action.key, name, description=action.title, show=False)
                used.add(action.key)

    def _refresh_page(self) -> None:
        page = self.page()
        if page is not None:
            page.refresh_state()


def taken_keys(console: type[Console]) -> list[str]:
    """Return every key that the console, a screen or a widget binds."""
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
