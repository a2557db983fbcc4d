"""Tables of results for the terminal and for Markdown documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from gatewayd.cli.bench.h200 import FIGURES, Comparison, reference


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a table; the first column is text, the others are numeric."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def as_rich(self, title: str) -> Table:
        """Format the rows as a terminal table."""
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for index, column in enumerate(self.header):
            table.add_column(column, justify="right" if index else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table

    def as_markdown(self) -> str:
        """Format the rows as a Markdown table, as in docs/benchmarks.md."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def comparison_rows(
    comparisons: Sequence[Comparison], *, is_verdict: bool, chip: str | None = None
) -> TableRows:
    """Format comparisons as rows, with a verdict on each goal if the goals apply.

    Args:
        comparisons: the comparisons.
        is_verdict: whether the goals apply to the run.
        chip: GPU whose limits the comparisons have; None for the reference GPU.
    """
    known = reference()
    rows = []
    for one in comparisons:
        share, times = one.share_of_limit, one.ratio_to_rival
        verdict = ("kept" if one.meets_goal else "missed") if is_verdict else "-"
        rows.append(
            [
                one.workload,
                FIGURES[one.figure],
                number(one.measured),
                "" if one.rival is None else number(one.rival),
                "" if times is None else f"{times:.2f}",
                f"{'≤' if one.is_duration else '≥'} {number(one.goal)}",
                "" if one.limit is None else number(one.limit),
                "" if share is None else f"{share:.0%}",
                verdict,
            ]
        )
    # Goals and figures of the other engine are always of the reference GPU.
    there = _short(known.gpu)
    header = ["workload", "figure", "ours", f"{known.rival}, {there}", "ratio"]
    header += [f"goal, {there}", f"limit, {_short(chip or known.gpu)}", "share", "verdict"]
    return TableRows(header, rows)


def _short(gpu: str) -> str:
    return gpu.removeprefix("NVIDIA ")


def number(value: float) -> str:
    """Format a number with at least three digits: ``0.0123``, ``4.89``, ``201``, ``17,844``."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
