"""SLO screen: targets per class, attainment, error budget and burn rates."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Static

from gatewayd.wire.snapshot import SloView
from gatewayd_tui.changes import changing, set_slo
from gatewayd_tui.figures import count, millis, percent
from gatewayd_tui.form_fields import form_fields
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.state import ConsoleState, HistoryPoint, rate
from gatewayd_tui.widgets.form import FormDialog
from gatewayd_tui.widgets.table import Cell, Column, LiveTable

ALL = "all"
_WINDOWS = ("5m", "1h", "6h")
_FAST, _SLOW = 14.4, 6.0
"""Burn rates at which the alert rules page, and open a ticket."""

Milliseconds = Annotated[float, Meta(gt=0, le=86_400_000)]


class ObjectivesTable(msgspec.Struct, frozen=True):
    """Form of a class's SLO targets.

    Attributes:
        ttft_ms: to the first token, at most.
        tpot_ms: for each further token, at most.
        e2e_ms: to the end of the answer, at most.
        objective: share of the requests that must meet each target.
    """

    ttft_ms: Milliseconds | None = None
    tpot_ms: Milliseconds | None = None
    e2e_ms: Milliseconds | None = None
    objective: Annotated[float, Meta(ge=0.5, lt=1)] = 0.99


def attainment(row: SloView) -> float | None:
    """Return the share of requests that met the target; None without requests."""
    total = row.good + row.bad
    return row.good / total if total else None


def budget_left(row: SloView) -> float | None:
    """Return the share of the error budget that is left; negative if overdrawn, None if unknown."""
    allowed = (1 - row.objective) * (row.good + row.bad)
    return 1 - row.bad / allowed if allowed > 0 else None


def verdict(row: SloView) -> Cell:
    """Return the alert state of a target in one word."""
    burn = [row.burn.get(window, 0.0) for window in _WINDOWS]
    if attainment(row) is None:
        return "- no data", "dim"
    # Two windows, as in the alert rules: the short one ends the alert soon after its cause.
    if burn[0] > _FAST and burn[1] > _FAST:
        return "✖ page", "bold red"
    if burn[1] > _SLOW and burn[2] > _SLOW:
        return "▲ ticket", "yellow"
    if burn[0] > 1:
        return "▲ burning", "yellow"
    return "● met", "green"


def _burn(window: str, row: SloView) -> Cell:
    value = row.burn.get(window)
    if value is None:
        return "-"
    return (f"{value:.1f}!", "bold red") if value > 1 else f"{value:.1f}"


def _left(row: SloView) -> Cell:
    left = budget_left(row)
    return (percent(left), "bold red") if left is not None and left < 0 else percent(left)


COLUMNS: list[Column[SloView]] = [
    Column("class", 9, lambda r: r.priority),
    Column("slo", 7, lambda r: r.slo),
    Column("target", 7, lambda r: millis(r.target_ms) if r.target_ms else "-", None, True),
    Column("of", 6, lambda r: f"{100 * r.objective:g}%", None, True),
    Column("met", 6, lambda r: percent(attainment(r)), attainment, True),
    Column("left", 6, _left, budget_left, True),
    *(
        Column(
            f"burn {window}" if window == "5m" else window,
            8 if window == "5m" else 5,
            partial(_burn, window),
            partial(lambda window, row: row.burn.get(window, 0.0), window),
            True,
        )
        for window in _WINDOWS
    ),
    Column("good", 7, lambda r: count(r.good), lambda r: r.good, True, True),
    Column("bad", 7, lambda r: count(r.bad), lambda r: r.bad, True, True),
    Column("", 0, verdict),
]


class SloScreen(ConsoleScreen):
    """SLO targets and burn rates."""

    NAME = "slo"
    KEY = "6"
    TITLE = "SLO"

    BINDINGS = [
        Binding("m", "edit", "Targets", id="slo.edit", tooltip="Change the targets of this class"),
    ]

    def body(self) -> ComposeResult:
        """Compose goodput and table."""
        yield Static(id="slo-goodput")
        yield LiveTable(COLUMNS, self.id_of)

    def id_of(self, row: SloView) -> str:
        """Return class and target."""
        return f"{row.priority} {row.slo}"

    def show(self, state: ConsoleState) -> None:
        """Update all classes."""
        assert state.snapshot is not None  # noqa: S101 - as the base says
        self.query_one(LiveTable).set_rows(state.snapshot.slo)
        self.query_one("#slo-goodput", Static).update(goodput(state))

    def on_data_table_row_selected(self) -> None:
        """Edit the targets of the selected class."""
        if self.console.can_change:
            self.action_edit()

    @changing
    @work
    async def action_edit(self) -> None:
        """Ask for new targets, and set them."""
        for row in self.chosen()[:1]:
            asked = form_fields(ObjectivesTable, targets(self.console.shown, row.priority))
            title = f"SLO targets of class {row.priority}"
            values = await self.app.push_screen_wait(FormDialog(title, asked))
            if values:
                self.submit_changes([set_slo(row.priority, values)])


def targets(state: ConsoleState, priority: str) -> dict[str, float]:
    """Return the current targets of a class, as form values."""
    rows = [] if state.snapshot is None else state.snapshot.slo
    own = [row for row in rows if row.priority == priority]
    found = {f"{row.slo}_ms": row.target_ms for row in own if row.target_ms is not None}
    return {**found, "objective": own[0].objective} if own else found


def goodput(state: ConsoleState) -> str:
    """Return the goodput by class: requests per second that meet all SLOs."""
    assert state.snapshot is not None  # noqa: S101 - as the caller says
    classes = [row.priority for row in state.snapshot.slo if row.slo == ALL]
    shown = [f"{name} {rate(state.history, partial(_good, name)):.1f}" for name in classes]
    return f"goodput, requests/s:  {'   '.join(shown) or '-'}"


def _good(priority: str, point: HistoryPoint) -> float:
    return point.good.get(priority, 0.0)
