"""Benchmark report: measured values against targets, as a table or JSON.

A comparison never fails because a number is low: machines differ. It says so in its table, and
``--strict`` turns that into the exit status.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Finding:
    """One number beside another.

    Attributes:
        name: what was measured.
        unit: of both numbers.
        ours: medians of the rounds.
        other: what it is compared with.
        other_name: whose number that is.
        target: what the ratio of ours to the other should be; None where nothing is promised.
        sign: whether the target is the least ratio, the largest or the only one.
    """

    name: str
    unit: str
    ours: float
    other: float
    other_name: str
    target: float | None = None
    sign: Literal[">=", "<=", "="] = ">="

    @property
    def ratio(self) -> float:
        """Ours to the other."""
        return self.ours / self.other if self.other else float("inf")

    @property
    def is_met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        if self.target is None:
            return None
        if self.sign == "=":
            return self.ratio == self.target
        return self.ratio <= self.target if self.sign == "<=" else self.ratio >= self.target


def median(values: Sequence[float]) -> float:
    """The middle of the rounds."""
    return statistics.median(values)


def machine() -> dict[str, object]:
    """Where this was measured, and how busy it was."""
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def publish(
    title: str,
    where: dict[str, object],
    findings: Sequence[Finding],
    *,
    as_json: bool,
    strict: bool,
    details: object = None,
) -> int:
    """Print and give the exit status."""
    if as_json:
        rows = [asdict(f) | {"ratio": f.ratio, "is_met": f.is_met} for f in findings]
        document = {"title": title, "machine": where, "findings": rows, "details": details}
        print(json.dumps(document, indent=2))
    else:
        table = Table(title=title, title_justify="left", caption=_line(where))
        for column in ("", "ours", "compared with", "", "unit", "ratio", "target"):
            table.add_column(column, justify="left" if column in ("", "unit") else "right")
        for f in findings:
            mark = {True: " yes", False: " NO", None: ""}[f.is_met]
            target = f"{f.sign} {f.target:g}{mark}" if f.target is not None else "-"
            row = (_number(f.ours), _number(f.other), f.other_name, f.unit, f"{f.ratio:.3g}")
            table.add_row(f.name, *row, target)
        width = None if sys.stdout.isatty() else 120
        Console(highlight=False, width=width).print(table)
    return int(strict and any(f.is_met is False for f in findings))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _line(where: dict[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in where.items())
