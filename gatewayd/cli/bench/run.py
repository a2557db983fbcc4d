"""A run of ``bench offline`` or ``bench serve``: its setup, its results and their output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import typer
from rich.console import Console

from gatewayd import __version__
from gatewayd.cli.bench.chip_limits import on_chip
from gatewayd.cli.bench.chips import CHIPS
from gatewayd.cli.bench.h200 import FIGURES, Comparison, differences, reference
from gatewayd.cli.bench.machine import computes_on, processor
from gatewayd.cli.bench.tables import TableRows, comparison_rows, number
from gatewayd.cli.bench.target import Subject
from gatewayd.config.strategies import AUTO, NONE

Form = Literal["table", "json", "markdown"]

_WIDTH = 200
_FORMS = {"quantizer.strategy": "weights", "kv_codec.strategy": "KV cache"}
"""Settings that the goals do not cover, with what they quantize."""


@dataclass(slots=True)
class BenchRun:
    """Setup and results of a run.

    Attributes:
        subject: model and configuration that are measured.
        device: device of the engine.
        dtype: dtype of weights and activations.
        scale: scale factor of the workloads.
        comparisons: comparisons so far.
        workloads: JSON documents of workloads so far.
        gpu: names of the GPUs; empty on a CPU.
    """

    subject: Subject
    device: str
    dtype: str
    scale: float
    comparisons: list[Comparison] = field(default_factory=list)
    workloads: list[dict[str, Any]] = field(default_factory=list)
    gpu: str = ""

    def __post_init__(self) -> None:
        self.gpu = computes_on(self.device)

    @property
    def differences(self) -> list[str]:
        """Reasons why the goals do not apply to this run; empty if they do."""
        return self._differences(self.gpu)

    def _differences(self, gpu: str) -> list[str]:
        found = differences(gpu, self.subject.name, self.dtype, self.scale)
        given = self.subject.settings
        for key, what in _FORMS.items():
            if (name := given.get(key, NONE)) not in (NONE, AUTO):
                found.append(f"{what} quantized by {name}")
        return found

    @property
    def is_whole(self) -> bool:
        """Whether nothing but the GPU differs from the setup that the limits apply to."""
        return not self._differences(reference().gpu)

    def compared(self) -> list[Comparison]:
        """Return the comparisons with the limits of this run's GPU."""
        # The limits are of whole workloads in the reference's setup; for others none is shown.
        chip = self.gpu if self.is_whole else ""
        return [on_chip(one, chip) for one in self.comparisons]

    def as_document(self) -> dict[str, Any]:
        """Convert the run to JSON values."""
        known = reference()
        is_verdict = not self.differences
        return {
            "version": __version__,
            "machine": {"gpu": self.gpu, "cpu": processor()},
            "model": self.subject.name,
            "dtype": self.dtype,
            "scale": self.scale,
            "settings": self.subject.settings,
            "workloads": self.workloads,
            "reference": {"gpu": known.gpu, "engine": known.rival},
            "differences": self.differences,
            "comparisons": [
                {
                    "workload": one.workload,
                    "figure": one.figure,
                    "measured": one.measured,
                    "reference": one.rival,
                    "times_reference": one.ratio_to_rival,
                    "goal": one.goal,
                    "limit": one.limit,
                    "share_of_limit": one.share_of_limit,
                    "kept": one.meets_goal if is_verdict else None,
                }
                for one in self.compared()
            ],
        }

    def write(self, file: Path | None) -> None:
        """Write the results so far to a JSON file, if there is one."""
        if file is not None:
            file.write_bytes(msgspec.json.format(msgspec.json.encode(self.as_document()), indent=2))

    def show(self, form: Form, title: str, more: TableRows) -> None:
        """Print the comparison and the rows of ``more`` in a format."""
        if form == "json":
            text = msgspec.json.format(msgspec.json.encode(self.as_document()), indent=2)
            typer.echo(text.decode())
            return
        rows = comparison_rows(
            self.compared(), is_verdict=not self.differences, chip=self.gpu or None
        )
        lines = self._caption()
        if form == "markdown":
            typer.echo("\n\n".join([rows.as_markdown(), more.as_markdown(), *lines]))
            return
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_WIDTH)
        console.print(rows.as_rich(f"{title}, {self.subject.name} in {self.dtype} on {self.where}"))
        for line in lines:
            console.print(line, markup=False)
        console.print()
        console.print(more.as_rich("the full run"))

    @property
    def where(self) -> str:
        """Name of the GPU, or of the CPU if there is none."""
        return self.gpu or processor()

    def _caption(self) -> list[str]:
        known = reference()
        lines = [
            f"{known.rival} and the goal are of one {known.gpu} with {known.model} in "
            f"{known.dtype}; a ratio above 1 is better than {known.rival}, for latencies too. The "
            "share is of the limit, what the hardware allows; the aim is 90 %."
        ]
        if self.is_whole and self.gpu and self.gpu not in CHIPS:
            lines.append(
                f"The hardware limits of {self.gpu} are not known: limit and share are not shown."
            )
        if self.differences:
            lines.append(f"This run is no verdict on the goals: {'; '.join(self.differences)}.")
        return lines


def progress_line(name: str, figures: dict[str, float], keys: Sequence[str]) -> str:
    """Format figures as a line: ``chatlike_1000: output tok/s 11,107; s 17.4``."""
    parts = (f"{FIGURES[key]} {number(figures[key])}" for key in keys if key in figures)
    return f"{name}: {'; '.join(parts)}"
