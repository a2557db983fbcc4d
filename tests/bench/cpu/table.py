"""Tables of the CPU comparison: medians of the rounds beside each other, ratios and goals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bench.cpu.goals import AGAINST_GENERATE, goal
from tests.bench.cpu.models import BILLION, ServedFile
from tests.bench.cpu.record import GENERATE, LLAMA, OURS, Cell, Record
from tests.bench.report import median

_NAMES = {LLAMA: "llama.cpp", GENERATE: "`generate`"}
_LATENCIES = ("TPOT p50, ms", "TPOT p99, ms")
_START = ("ready, s", "first answer, s", "peak MiB")
_LOWER = (*_LATENCIES, *_START)
"""Figures of which less is better."""


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One figure of both sides.

    Attributes:
        label: workload and figure.
        other_name: whose figure ours is compared with.
        ours: of each round.
        other: of the same rounds.
        goal: least ratio; None without one.
        is_lower_better: whether the ratio is the other's to ours: above 1 is better for us always.
    """

    label: str
    other_name: str
    ours: tuple[float, ...]
    other: tuple[float, ...]
    goal: float | None = None
    is_lower_better: bool = False

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return self._ratio(median(self.ours), median(self.other))

    @property
    def ratios(self) -> tuple[float, ...]:
        """Of each round, ascending."""
        pairs = zip(self.ours, self.other, strict=True)
        return tuple(sorted(self._ratio(ours, other) for ours, other in pairs))

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is reached, by the ratio of the medians; None without a goal."""
        return None if self.goal is None else self.ratio >= self.goal

    def values(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "workload": self.label,
            "compared_with": self.other_name,
            "ours": self.ours,
            "other": self.other,
            "ratio": self.ratio,
            "goal": self.goal,
            "is_met": self.is_met,
        }

    def _ratio(self, ours: float, other: float) -> float:
        top, bottom = (other, ours) if self.is_lower_better else (ours, other)
        return top / bottom if bottom else float("inf")


def rows(record: Record) -> Iterator[ComparedRow]:
    """All rows that both sides have been measured for."""
    for cell in record.cells():
        for figure in _figures(cell):
            row = _row(record, cell, OURS, LLAMA, figure, goal(cell, figure))
            if row is not None:
                yield row
        if cell.workload in AGAINST_GENERATE:
            level = cell.workload.replace("batch", "concurrency")
            ours = Cell(cell.model, cell.scheme, level)
            target = AGAINST_GENERATE[cell.workload]
            row = _row(record, cell, OURS, GENERATE, "tok/s", target, ours)
            if row is not None:
                yield row


def markdown(record: Record, found: Sequence[ComparedRow]) -> str:
    """The processor's section: where and how it was measured, and the table."""
    head = record.header
    lines = [
        f"#### {head['name']}",
        "",
        f"{head['date']}, commit {head['commit']}, {head['cpu']}, {head['cores']} cores, Python"
        f" {head['python']}; load before {head['load_before']}."
        f" `{head['command']}`. Medians of the rounds; a ratio above"
        " 1 is better, for latencies and memory too.",
        "",
        "| workload | ours / the other | compared with | ratio | rounds | goal |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_line(row) for row in found),
    ]
    return "\n".join(lines) + "\n"


def label(cell: Cell, figure: str) -> str:
    """A row's name; nano in f32, the first comparison of all, needs no prefix."""
    file = ServedFile(cell.model, cell.scheme)
    before = "" if file.serves_embedded else f"{file.title}, "
    during = f", beside {cell.load}" if cell.load else ""
    return f"{before}{cell.workload}{during}, {figure}"


def _row(
    record: Record,
    cell: Cell,
    ours_name: str,
    other_name: str,
    figure: str,
    target: float | None,
    ours_cell: Cell | None = None,
) -> ComparedRow | None:
    ours = record.rounds(ours_cell or cell, ours_name)
    other = record.rounds(cell, other_name)
    both = [turn for turn in sorted(ours.keys() & other.keys()) if figure in ours[turn]]
    if not both:
        return None
    return ComparedRow(
        label(cell, figure),
        _NAMES[other_name],
        tuple(ours[turn][figure] for turn in both),
        tuple(other[turn][figure] for turn in both),
        target,
        figure in _LOWER,
    )


def _figures(cell: Cell) -> tuple[str, ...]:
    if cell.load:
        return _LATENCIES
    if cell.workload.endswith("start"):
        return _START
    if cell.workload.startswith("prompt"):
        return ("prompt tok/s",)
    if cell.workload.startswith("concurrency"):
        # Prompts take a good part of the time of a large model.
        return ("tok/s", "decode tok/s") if cell.model == BILLION else ("tok/s",)
    return ("requests/s",)


def _line(row: ComparedRow) -> str:
    least, most = row.ratios[0], row.ratios[-1]
    spread = f"{least:.2f} to {most:.2f}" if len(row.ratios) > 1 else "one"
    verdict = "" if row.goal is None else f"{row.goal:g} x: {'met' if row.is_met else 'missed'}"
    pair = f"{_number(median(row.ours))} / {_number(median(row.other))}"
    return f"| {row.label} | {pair} | {row.other_name} | {row.ratio:.2f} | {spread} | {verdict} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
