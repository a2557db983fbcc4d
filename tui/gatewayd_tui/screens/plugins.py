"""What decides: strategies and their cost, what is installed, and what failed to load."""

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
from gatewayd_tui import reads
from gatewayd_tui.changes import Change, changing, set_limits, swap
from gatewayd_tui.client import AdminRefused, Lost
from gatewayd_tui.figures import count
from gatewayd_tui.plugged import Failed
from gatewayd_tui.questions import Question, questions, typed
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.state import ConsoleState
from gatewayd_tui.widgets.choose import Choose
from gatewayd_tui.widgets.form import FormDialog
from gatewayd_tui.widgets.table import Cell, Column, LiveTable

CHAINS = ("logits_processor", "kv_tier")
"""Kinds of which several run, in an order."""
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
    """See above."""

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

    def body(self) -> ComposeResult:
        """Two tables."""
        yield LiveTable(STRATEGIES, self.id_of, id="strategies")
        yield LiveTable(PLUGINS, self.id_of, id="plugins")

    def id_of(self, row: Any) -> str:  # noqa: ANN401 - a row of either table
        """As the configuration has it; of a strategy with its engine."""
        name = f"{row.kind}.{row.name}"
        return f"{name} {row.engine}" if isinstance(row, StrategyView) else name

    def on_screen_resume(self) -> None:
        """What is installed is asked for when somebody comes."""
        super().on_screen_resume()
        self.action_renew()

    def show(self, state: ConsoleState) -> None:
        """The strategies, and what was installed when it was asked for."""
        assert state.snapshot is not None  # noqa: S101 - as the base says
        strategies = self.query_one("#strategies", LiveTable)
        strategies.put(state.snapshot.strategies)
        limits = "   ".join(f"{k} {typed(k, v)}" for k, v in state.snapshot.limits.items())
        strategies.border_title = Content(limits)
        self._show_installed()

    @work(exclusive=True, group="plugins")
    async def action_renew(self) -> None:
        """Ask again."""
        try:
            self._installed, self._trouble = await reads.plugins(self.console.source), ""
        except (Lost, AdminRefused) as error:
            self._installed, self._trouble = [], str(error)
        self._show_installed()

    def made(self, change: Change, answer: Any) -> None:  # noqa: ANN401 - JSON
        """Another one is enabled now."""
        self.action_renew()

    @changing
    @work
    async def action_swap(self) -> None:
        """Ask for the kind, the name and the settings."""
        try:
            await self._swap(await reads.plugins(self.console.source))
        except (Lost, AdminRefused) as error:
            self.notify(str(error), severity="error", markup=False)

    @changing
    @work
    async def action_limits(self) -> None:
        """Ask for other limits."""
        state = self.console.shown
        now = {} if state.snapshot is None else state.snapshot.limits
        form = FormDialog("Runtime limits", questions(LimitsBody, now, nullable=False))
        values = await self.app.push_screen_wait(form)
        if values:
            self.ask([set_limits(values)])

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
        if settings is not None:
            self.ask([swap(kind, name, settings)])

    async def _swap_chain(self, kind: str, installed: Sequence[str]) -> None:
        """Ask for all of them, in their order, then for the settings of those that come in."""
        before = await reads.chosen(self.console.source, kind)
        line = Question(
            "strategies",
            inspect.ListType(inspect.StrType()),
            f"in order, from {', '.join(installed)}",
            " ".join(before),
        )
        values = await self.app.push_screen_wait(FormDialog(f"Which {kind}s?", [line]))
        if not values:
            return
        settings = {}
        for name in [each for each in values["strategies"] if each not in before]:
            found = await self._settings(kind, name)
            if found is None:
                return
            if found:
                settings[name] = found
        self.ask([swap(kind, values["strategies"], settings)])

    async def _settings(self, kind: str, name: str) -> dict[str, Any] | None:
        """Ask for the settings of a strategy, if it has any; None where that is left."""
        found = await reads.settings(self.console.source, kind, name)
        if not found.settings:
            return {}
        form = FormDialog(f"Settings of {kind} {name}", settings_of(found))
        return await self.app.push_screen_wait(form)

    def _show_installed(self) -> None:
        table = self.query_one("#plugins", LiveTable)
        table.put(rows_of(self._installed, self.console.added.failed))
        table.border_title = Content(self._trouble or "installed")


def settings_of(found: PluginSettings) -> list[Question]:
    """A line for each setting; what stays as it is is not sent."""
    return [
        Question(
            each.name,
            inspect.AnyType(),
            each.doc,
            "" if each.value is None else typed(each.name, each.value),
            takes=f"{each.takes}; {_unless(each.default)}; {each.reload}",
        )
        for each in found.settings
    ]


def rows_of(installed: Sequence[PluginView], failed: Sequence[Failed]) -> list[PluginView]:
    """What went wrong first; of parts of the console the console itself knows it."""
    reasons = {each.plugin: each.reason for each in failed}
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
