"""Table of the kernels selected by tuning, by operation, shape and range of batch rows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from rich.table import Table

from gatewayd.cli.common import whole
from gatewayd_engine.tuning.table import TableContents, TableEntry

_LINES = "m"
"""Size key of batch rows; a captured size uses the choice of the next larger measured one."""
Row = tuple[str, str, str, str, str, str]


def table_of(tuning: TableContents) -> Table:
    """Format all tuning choices of a machine as a table."""
    rows = [_row(below, run) for below, run in _runs(tuning.entries)]
    heads = ("operation", "shape", "lines", "choice", "default", "saves")
    table = Table(
        *(whole(head, [row[i] for row in rows]) for i, head in enumerate(heads)),
        title=f"Chosen by measuring on {tuning.machine.chip}",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for row in rows:
        table.add_row(*row)
    return table


def _runs(entries: Iterable[TableEntry]) -> list[tuple[int, list[TableEntry]]]:
    """Group adjacent sizes of one shape and choice, each with the size below its range."""
    runs: list[tuple[int, list[TableEntry]]] = []

    def shape(entry: TableEntry) -> tuple[str, str, tuple[tuple[str, int], ...]]:
        rest = sorted((name, size) for name, size in entry.sizes.items() if name != _LINES)
        return entry.op, entry.dtype, tuple(rest)

    def lines(entry: TableEntry) -> int:
        return entry.sizes.get(_LINES, 0)

    # Sorted by the same key, because groupby joins only neighbours.
    for _, alike in groupby(sorted(entries, key=lambda e: (shape(e), lines(e))), shape):
        below = 0
        for _, run in groupby(alike, lambda entry: entry.choice):
            same = list(run)
            runs.append((below, same))
            below = lines(same[-1])
    return runs


def _row(below: int, entries: list[TableEntry]) -> Row:
    first, last = entries[0], entries[-1]
    most = last.sizes.get(_LINES)
    span = "" if most is None else f"{below + 1} to {most}" if most > below + 1 else f"{most}"
    saved = [
        f"{1 - chosen / base:.0%}"
        for entry in entries
        if (chosen := entry.microseconds[entry.choice]) is not None
        and (base := entry.microseconds[entry.default]) is not None
    ]
    return (
        f"{first.op}, {first.dtype}",
        ", ".join(f"{name} {size}" for name, size in first.sizes.items() if name != _LINES),
        span,
        f"{first.choice}  {_times(entries, first.choice)}",
        f"{first.default}  {_times(entries, first.default)}",
        _span(saved) if first.choice != first.default else "",
    )


def _times(entries: list[TableEntry], name: str) -> str:
    times = [f"{time:.1f}" for entry in entries if (time := entry.microseconds[name]) is not None]
    return f"{_span(times)} µs" if times else ""


def _span(texts: list[str]) -> str:
    """Format the first and the last text as a range, or the only one."""
    if not texts:
        return ""
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"
