"""Rows of text as a table for the terminal or for a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from gatewayd.cli.bench.h200 import FIGURES, Comparison, reference


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table before it is drawn; the first column is text, the others are figures."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def as_rich(self, title: str) -> Table:
        """For a terminal."""
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for place, column in enumerate(self.header):
            table.add_column(column, justify="right" if place else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table

    def as_markdown(self) -> str:
        """For docs/benchmarks.md."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def comparison_rows(
    comparisons: Sequence[Comparison], *, is_verdict: bool, chip: str | None = None
) -> TableRows:
    """Ours beside the stored figures; without a verdict nothing is called kept or missed.

    Args:
        comparisons: what was measured.
        is_verdict: whether the goals bind the run.
        chip: whose limits the comparisons have; None for the one with the goals.
    """
    known = reference()
    rows = []
    for one in comparisons:
        share, times = one.share_of_limit, one.times_rival
        verdict = ("kept" if one.is_kept else "missed") if is_verdict else "-"
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
    # On another machine, too, the other engine's figures and the goals are of this one.
    there = _short(known.gpu)
    header = ["workload", "figure", "ours", f"{known.rival}, {there}", "ratio"]
    header += [f"goal, {there}", f"limit, {_short(chip or known.gpu)}", "share", "verdict"]
    return TableRows(header, rows)


def _short(gpu: str) -> str:
    return gpu.removeprefix("NVIDIA ")


def number(value: float) -> str:
    """Three digits at least: ``0.0123``, ``4.89``, ``201``, ``17,844``."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
