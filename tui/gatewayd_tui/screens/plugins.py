"""Plugins screen: active strategies with their cost, and installed plugins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import inspect
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content

from gatewayd.wire.plugins import PluginSettings, PluginView
from gatewayd.wire.requests import LimitsBody
from gatewayd.wire.snapshot import StrategyView
from gatewayd_tui import queries
from gatewayd_tui.changes import Change, changing, set_limits, swap
from gatewayd_tui.client import AdminRefused, DaemonUnreachable
from gatewayd_tui.extensions import FailedPlugin
from gatewayd_tui.figures import count
from gatewayd_tui.form_fields import FormField, as_typed, form_fields
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.state import ConsoleState
from gatewayd_tui.widgets.choose import Choose
from gatewayd_tui.widgets.form import FormDialog
from gatewayd_tui.widgets.table import Cell, Column, LiveTable

CHAINS = ("logits_processor", "kv_tier")
"""Kinds with several strategies, in order."""
_MAY_BE_EMPTY = ("prefix_cache", "guide", "drafter")
_STATES = {"active": ("●", "green"), "quarantined": ("✖", "bold red"), "replaced": ("○", "dim")}
_FOUND = {
    "enabled": ("●", "green"),
    "installed": ("○", "dim"),
    "failed": ("✖", "bold red"),
    "conflict": ("✖", "bold red"),
    "unknown": ("?", "yellow"),
}


def _state(row: StrategyView) -> Cell:
    glyph, style = _STATES.get(row.state, ("?", "yellow"))
    return f"{glyph} {row.state}", style


def _faults(row: StrategyView) -> Cell:
    return (f"{row.faults}!", "bold red") if row.faults else "0"


STRATEGIES: list[Column[StrategyView]] = [
    Column("kind", 16, lambda r: r.kind, lambda r: r.kind),
    Column("name", 0, lambda r: r.name, lambda r: r.name),
    Column("eng", 3, lambda r: "-" if r.engine == "none" else r.engine, lambda r: r.engine),
    Column("state", 13, _state, lambda r: r.state),
    Column("faults", 6, _faults, lambda r: r.faults, True),
    Column("calls", 5, lambda r: count(r.calls), lambda r: r.calls, True),
    Column("mean us", 7, lambda r: count(r.mean_us), lambda r: r.mean_us, True),
    Column("longest", 7, lambda r: count(r.longest_us), lambda r: r.longest_us, True),
]


def _found(row: PluginView) -> Cell:
    glyph, style = _FOUND.get(row.state, ("?", "yellow"))
    return f"{glyph} {row.state}", style


def _from(row: PluginView) -> Cell:
    return f"{row.distribution} {row.version}"


PLUGINS: list[Column[PluginView]] = [
    Column("kind", 16, lambda r: r.kind, lambda r: r.kind),
    Column("name", 12, lambda r: r.name, lambda r: r.name),
    Column("state", 11, _found, lambda r: r.state),
    Column("from", 22, _from, lambda r: r.distribution, is_wide=True),
    Column("", 0, lambda r: r.reason or r.summary),
]


class PluginsScreen(ConsoleScreen):
    """Strategies and installed plugins."""

    NAME = "plugins"
    KEY = "9"
    TITLE = "Plugins"

    BINDINGS = [
        Binding("c", "swap", "Swap", id="plugins.swap", tooltip="Replace a strategy at runtime"),
        Binding("m", "limits", "Limits", id="plugins.limits", tooltip="Change limits at runtime"),
        Binding(
            "r", "renew", "Refresh", id="plugins.renew", tooltip="Reload the installed plugins"
        ),
        Binding("tab", "app.focus_next", "Next table", show=False, id="plugins.other"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._installed: list[PluginView] = []
        self._trouble = ""
        self._model = ""

    def body(self) -> ComposeResult:
        """Compose two tables."""
        yield LiveTable(STRATEGIES, self.id_of, id="strategies")
        yield LiveTable(PLUGINS, self.id_of, id="plugins")

    def id_of(self, row: Any) -> str:  # noqa: ANN401 - a row of either table
        """Return the name as in the configuration; for a strategy with its engine."""
        name = f"{row.kind}.{row.name}"
        return f"{name} {row.engine}" if isinstance(row, StrategyView) else name

    def on_screen_resume(self) -> None:
        """Reload the installed plugins when the screen is opened."""
        super().on_screen_resume()
        self.action_renew()

    def show(self, state: ConsoleState) -> None:
        """Update the strategies; installed plugins are as of the last query."""
        assert state.snapshot is not None  # noqa: S101 - as the base says
        strategies = self.query_one("#strategies", LiveTable)
        strategies.set_rows(state.snapshot.strategies)
        limits = "   ".join(f"{k} {as_typed(k, v)}" for k, v in state.snapshot.limits.items())
        strategies.border_title = Content(limits)
        # Which ones are enabled is for each model to say.
        if state.snapshot.daemon.model != self._model:
            is_first, self._model = not self._model, state.snapshot.daemon.model
            if not is_first:
                self.action_renew()
        self._show_installed()

    @work(exclusive=True, group="plugins")
    async def action_renew(self) -> None:
        """Reload the installed plugins."""
        try:
            self._installed, self._trouble = await queries.plugins(self.console.calls), ""
        except (DaemonUnreachable, AdminRefused) as error:
            self._installed, self._trouble = [], str(error)
        self._show_installed()

    def change_applied(self, change: Change, answer: Any) -> None:  # noqa: ANN401 - JSON
        """Reload the installed plugins after a swap."""
        self.action_renew()

    @changing
    @work
    async def action_swap(self) -> None:
        """Ask for kind, name and settings, and swap the strategy."""
        try:
            await self._swap(await queries.plugins(self.console.calls))
        except (DaemonUnreachable, AdminRefused) as error:
            self.notify(str(error), severity="error", markup=False)

    @changing
    @work
    async def action_limits(self) -> None:
        """Ask for new runtime limits."""
        state = self.console.shown
        now = {} if state.snapshot is None else state.snapshot.limits
        form = FormDialog("Runtime limits", form_fields(LimitsBody, now, nullable=False))
        values = await self.app.push_screen_wait(form)
        if values:
            self.submit_changes([set_limits(values)])

    async def _swap(self, installed: Sequence[PluginView]) -> None:
        can = [row for row in installed if row.can_swap]
        kinds = sorted({row.kind for row in can})
        kind = await self.app.push_screen_wait(Choose("Which kind of strategy?", kinds))
        if kind is None:
            return
        names = [row.name for row in can if row.kind == kind]
        if kind in CHAINS:
            await self._swap_chain(kind, names)
            return
        if kind in _MAY_BE_EMPTY:
            names.append("none")
        name = await self.app.push_screen_wait(Choose(f"Which {kind}?", names))
        if name is None:
            return
        settings = {} if name == "none" else await self._settings(kind, name)
        # None is a cancelled form; without settings it is empty.
        if settings is not None:
            self.submit_changes([swap(kind, name, settings)])

    async def _swap_chain(self, kind: str, installed: Sequence[str]) -> None:
        """Ask for the ordered names of a chain, then for the settings of new ones."""
        before = await queries.active_strategies(self.console.calls, kind)
        line = FormField(
            "strategies",
            inspect.ListType(inspect.StrType()),
            f"in order, from {', '.join(installed)}",
            " ".join(before),
        )
        values = await self.app.push_screen_wait(FormDialog(f"Which {kind}s?", [line]))
        if not values:
            return
        settings = {}
        # Strategies that stay keep their settings.
        for name in [each for each in values["strategies"] if each not in before]:
            found = await self._settings(kind, name)
            if found is None:
                return
            if found:
                settings[name] = found
        self.submit_changes([swap(kind, values["strategies"], settings)])

    async def _settings(self, kind: str, name: str) -> dict[str, Any] | None:
        """Ask for the settings of a strategy, if it has any; None if cancelled."""
        found = await queries.settings(self.console.calls, kind, name)
        if not found.settings:
            return {}
        form = FormDialog(f"Settings of {kind} {name}", settings_of(found))
        return await self.app.push_screen_wait(form)

    def _show_installed(self) -> None:
        table = self.query_one("#plugins", LiveTable)
        table.set_rows(rows_of(self._installed, self.console.added.failed))
        table.border_title = Content(self._trouble or "installed")


def settings_of(found: PluginSettings) -> list[FormField]:
    """Return a form field for each setting; unchanged ones are not sent."""
    return [
        FormField(
            each.name,
            inspect.AnyType(),
            each.doc,
            "" if each.value is None else as_typed(each.name, each.value),
            takes=f"{each.takes}; {_unless(each.default)}; {each.reload}",
        )
        for each in found.settings
    ]


def rows_of(installed: Sequence[PluginView], failed: Sequence[FailedPlugin]) -> list[PluginView]:
    """Return the plugin rows, failed ones first, including console plugins that failed here."""
    reasons = {each.plugin: each.reason for each in failed}
    # The daemon does not load console plugins, so only this process knows what failed.
    rows = [row for row in installed if row.kind != "console" or row.name not in reasons]
    own = [
        PluginView(
            kind="console",
            name=name,
            distribution="",
            version="",
            state="failed",
            summary="",
            reason=reason,
            can_swap=False,
        )
        for name, reason in reasons.items()
    ]
    return sorted([*own, *rows], key=lambda row: row.state not in ("failed", "conflict"))


def _unless(default: object) -> str:
    return "no default" if default is None else f"default {default}"
