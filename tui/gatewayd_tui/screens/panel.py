"""Screen of a plugin's panel: shows the function's result for each snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import ClassVar

import msgspec
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from gatewayd.wire.snapshot import Snapshot
from gatewayd_hooks.console import Panel
from gatewayd_hooks.host.errors import describe_error
from gatewayd_tui.extensions import SHOW_SECONDS, PanelContent, call_in_thread, render_panel
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.state import ConsoleState
from gatewayd_tui.widgets.table import Column, LiveTable

MOST_FAULTS = 3
_WIDEST = 32
Row = tuple[str, ...]


class PanelScreen(ConsoleScreen):
    """Screen of a panel; each panel has a subclass of its own.

    Attributes:
        PLUGIN: name of the plugin.
        PANEL: the panel.
    """

    PLUGIN: ClassVar[str]
    PANEL: ClassVar[Panel]

    BINDINGS = [
        Binding("r", "again", "Retry", id="panel.again", tooltip="Retry after faults"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._faults = 0
        self._is_asked = False
        self._columns: Row = ()

    def body(self) -> ComposeResult:
        """Compose a text, which a table replaces if the panel returns one."""
        with VerticalScroll(id="panel"):
            yield Static(id="panel-text")

    def id_of(self, row: Row) -> str:
        """Return the first cell."""
        return row[0]

    def show(self, state: ConsoleState) -> None:
        """Call the plugin, unless a call is running or it has failed too often."""
        # At most one call at a time: a slow panel skips snapshots instead of queueing them.
        if state.snapshot is not None and not self._is_asked and self._faults < MOST_FAULTS:
            self._is_asked = True
            self._ask(state.snapshot)

    def action_again(self) -> None:
        """Reset the fault counter and retry."""
        self._faults = 0
        self.refresh_state()

    @work(group="panel")
    async def _ask(self, snapshot: Snapshot) -> None:
        # A copy of plain data: a plugin cannot change what other screens show.
        look = msgspec.to_builtins(snapshot)
        try:
            found = await call_in_thread(lambda: render_panel(self.PANEL, look), SHOW_SECONDS)
        except TimeoutError:
            await self._fail(f"it did not return within {SHOW_SECONDS:g} s")
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything
            await self._fail(describe_error(error))
        else:
            self._faults = 0
            await self._draw(found)
        finally:
            self._is_asked = False

    async def _fail(self, reason: str) -> None:
        self._faults += 1
        lines = [f"✖ plugin {self.PLUGIN}, panel {self.PANEL.id}: {reason}"]
        if self._faults >= MOST_FAULTS:
            lines.append("disabled after repeated faults; r retries")
        await self._draw(PanelContent((), tuple((line,) for line in lines)))

    async def _draw(self, found: PanelContent) -> None:
        text = self.query_one("#panel-text", Static)
        if found.columns != self._columns:
            # Columns of a LiveTable are fixed, so another shape needs another table.
            await self.query(LiveTable).remove()
            self._columns = found.columns
            if found.columns:
                table = LiveTable(columns_of(found), itemgetter(0))
                await self.query_one("#body").mount(table)
                table.focus()
        self.query_one("#panel").display = not found.columns
        if found.columns:
            self.query_one(LiveTable).set_rows(found.rows)
        else:
            text.update(Content("\n".join(line for (line,) in found.rows)))


def columns_of(found: PanelContent) -> list[Column[Row]]:
    """Return columns as wide as their first content; the last one takes the rest."""
    columns: list[Column[Row]] = []
    for place, title in enumerate(found.columns):
        cells = [len(row[place]) for row in found.rows]
        width = min(_WIDEST, max([len(title) + 1, *cells]))
        is_last = place == len(found.columns) - 1
        cell = itemgetter(place)
        columns.append(Column(title, 0 if is_last else width, cell, cell))
    return columns


def screens_of(
    panels: Iterable[tuple[str, Panel]], taken: Iterable[str]
) -> tuple[type[PanelScreen], ...]:
    """Return a screen for each panel; keys that are taken are not assigned again."""
    used, made = set(taken), []
    for plugin, panel in panels:
        # The screen stays reachable from the command palette.
        key = "" if panel.key in used else panel.key
        used.add(key)
        name = f"{plugin}.{panel.id}"
        words = {"NAME": name, "KEY": key, "TITLE": panel.title, "PLUGIN": plugin, "PANEL": panel}
        made.append(type(f"Panel_{plugin}_{panel.id}", (PanelScreen,), words))
    return tuple(made)
