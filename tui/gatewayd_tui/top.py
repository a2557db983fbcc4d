"""``gatewayd top``: successive snapshots as plain tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live as Refreshing
from rich.table import Table
from rich.text import Text

from gatewayd_tui.figures import count, duration, millis, percent
from gatewayd_tui.machine_usage import usage_of
from gatewayd_tui.screens.queue import COLUMNS as WAITING
from gatewayd_tui.screens.running import COLUMNS as RUNNING
from gatewayd_tui.state import ConsoleState, model_label, rate
from gatewayd_tui.widgets.table import Column, plain

_UNLIMITED = 10_000


def terminal() -> Console:
    """Return the output console; lines are not truncated if it is not a terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_UNLIMITED)


def follow(states: Iterator[ConsoleState], console: Console) -> None:
    """Show each state in place of the previous one; appended if there is no terminal."""
    states = (state for state in states if state.snapshot is not None)
    # Nothing to overwrite in a pipe or file.
    if not console.is_terminal:
        for state in states:
            console.print(tables(state))
        return
    with Refreshing(console=console, auto_refresh=False, screen=True) as place:
        for state in states:
            place.update(tables(state), refresh=True)


def tables(state: ConsoleState) -> RenderableType:
    """Render a state: daemon, engines, running and waiting requests, SLOs."""
    snapshot = state.snapshot
    if snapshot is None:
        return Text(state.lost or "")
    daemon, last = snapshot.daemon, state.history[-1]
    head = Text(
        f"{model_label(daemon)}  {daemon.state}  up {duration(daemon.uptime_seconds)}  "
        f"{daemon.url}\n"
        f"{last.running} running  {last.waiting} waiting  kv {percent(last.kv_share)}"
    )
    if len(state.history) > 1:
        out = rate(state.history, lambda p: p.generated_tokens)
        head.append(f"  {count(rate(state.history, lambda p: p.requests))} requests/s")
        head.append(f"  {count(out)} tokens/s")
    for trouble in [*([state.lost] if state.lost else []), *daemon.troubles]:
        head.append(f"\n✖ {trouble}")
    engines = _plain(
        (
            "engine",
            "state",
            "device",
            "memory",
            "busy",
            "running",
            "pages used",
            "cached",
            "free",
            "steps",
        ),
        [
            (
                f"{e.index}",
                e.state,
                e.device,
                usage_of([e]).memory,
                usage_of([e]).work,
                f"{e.num_running}/{e.max_running}",
                f"{e.held_pages}",
                f"{e.cached_pages}",
                f"{e.free_pages}",
                f"{e.steps}",
            )
            for e in snapshot.engines
        ],
    )
    times = _plain(
        ("last minute", "p50", "p95", "p99", "of"),
        [
            (each.name, millis(each.p50), millis(each.p95), millis(each.p99), f"{each.count}")
            for each in snapshot.latencies
        ],
    )
    slo = _plain(
        ("class", "slo", "target", "good", "bad", "burn 5m", "1h", "6h"),
        [
            (
                each.priority,
                each.slo,
                millis(each.target_ms),
                f"{each.good}",
                f"{each.bad}",
                *(f"{each.burn.get(window, 0.0):.2f}" for window in ("5m", "1h", "6h")),
            )
            for each in snapshot.slo
        ],
    )
    parts = [
        head,
        engines,
        times,
        _rows("running", RUNNING, snapshot.running, snapshot.more_running),
        _rows("waiting", WAITING, snapshot.waiting, snapshot.more_waiting),
        slo,
    ]
    return Group(*(part for each in parts if each is not None for part in (each, Text())))


def _rows(title: str, columns: list[Column[Any]], rows: list[Any], more: int) -> Table | None:
    cells = [[plain(column.cell(row)) for column in columns] for row in rows]
    table = _plain([f"{title} {columns[0].title}", *(c.title for c in columns[1:])], cells)
    if table is not None and more:
        table.add_row(f"and {more} more")
    return table


def _plain(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> Table | None:
    table = Table(*titles, box=None, pad_edge=False)
    for row in rows:
        # As Text: names come from clients, and are never markup.
        table.add_row(*map(Text, row))
    return table if table.row_count else None
