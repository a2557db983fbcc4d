"""What classes are promised, whether it is kept, and how fast the rest is used up."""

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
from gatewayd_tui.questions import questions
from gatewayd_tui.screens.base import ConsoleScreen
from gatewayd_tui.state import ConsoleState, Point, rate
from gatewayd_tui.widgets.form import FormDialog
from gatewayd_tui.widgets.table import Cell, Column, LiveTable

ALL = "all"
_WINDOWS = ("5m", "1h", "6h")
_FAST, _SLOW = 14.4, 6.0
"""Burn rates at which the alert rules page at once, and open a ticket."""

Milliseconds = Annotated[float, Meta(gt=0, le=86_400_000)]


class ObjectivesTable(msgspec.Struct, frozen=True):
    """What may be changed of a class.

    Attributes:
        ttft_ms: to the first token, at most.
        tpot_ms: for each further token, at most.
        e2e_ms: to the end of the answer, at most.
        objective: share of the requests that must keep it.
    """

    ttft_ms: Milliseconds | None = None
    tpot_ms: Milliseconds | None = None
    e2e_ms: Milliseconds | None = None
    objective: Annotated[float, Meta(ge=0.5, lt=1)] = 0.99


def attainment(row: SloView) -> float | None:
    """The share that was kept; None of none."""
    total = row.good + row.bad
    return row.good / total if total else None


def budget_left(row: SloView) -> float | None:
    """Of what may go wrong, the share that has not; below 0 it is overdrawn. None of none."""
    allowed = (1 - row.objective) * (row.good + row.bad)
    return 1 - row.bad / allowed if allowed > 0 else None


def verdict(row: SloView) -> Cell:
    """In a word: does anybody have to do something?"""
    burn = [row.burn.get(window, 0.0) for window in _WINDOWS]
    if attainment(row) is None:
        return "- no data", "dim"
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
    Column("promise", 7, lambda r: r.slo),
    Column("target", 7, lambda r: millis(r.target_ms) if r.target_ms else "-", None, True),
    Column("of", 6, lambda r: f"{100 * r.objective:g}%", None, True),
    Column("kept", 6, lambda r: percent(attainment(r)), attainment, True),
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
    """See above."""

    NAME = "slo"
    KEY = "6"
    TITLE = "SLO"

    BINDINGS = [
        Binding("m", "edit", "Targets", id="slo.edit", tooltip="Change the targets of this class"),
    ]

    def body(self) -> ComposeResult:
        """What is good put through, and the promises."""
        yield Static(id="slo-goodput")
        yield LiveTable(COLUMNS, self.id_of)

    def id_of(self, row: SloView) -> str:
        """The class and the promise."""
        return f"{row.priority} {row.slo}"

    def show(self, state: ConsoleState) -> None:
        """All classes."""
        assert state.snapshot is not None  # noqa: S101 - as the base says
        self.query_one(LiveTable).put(state.snapshot.slo)
        self.query_one("#slo-goodput", Static).update(goodput(state))

    def on_data_table_row_selected(self) -> None:
        """Enter on a row, or a click."""
        if self.console.can_change:
            self.action_edit()

    @changing
    @work
    async def action_edit(self) -> None:
        """Ask for other targets, and set them."""
        for row in self.chosen()[:1]:
            asked = questions(ObjectivesTable, targets(self.console.shown, row.priority))
            title = f"SLO targets of class {row.priority}"
            values = await self.app.push_screen_wait(FormDialog(title, asked))
            if values:
                self.ask([set_slo(row.priority, values)])


def targets(state: ConsoleState, priority: str) -> dict[str, float]:
    """What a class is promised now, as the form has it."""
    rows = [] if state.snapshot is None else state.snapshot.slo
    own = [row for row in rows if row.priority == priority]
    found = {f"{row.slo}_ms": row.target_ms for row in own if row.target_ms is not None}
    return {**found, "objective": own[0].objective} if own else found


def goodput(state: ConsoleState) -> str:
    """Requests a second that keep all that their class is promised, by class."""
    assert state.snapshot is not None  # noqa: S101 - as the caller says
    classes = [row.priority for row in state.snapshot.slo if row.slo == ALL]
    shown = [f"{name} {rate(state.history, partial(_good, name)):.1f}" for name in classes]
    return f"goodput, requests/s:  {'   '.join(shown) or '-'}"


def _good(priority: str, point: Point) -> float:
    return point.good.get(priority, 0.0)
