"""Reference figures and goals on one H200, and comparison of a run with them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec

FIGURES = {
    "seconds": "s",
    "output_tokens_per_second": "output tok/s",
    "input_tokens_per_second": "input tok/s",
    "requests_per_second": "requests/s",
    "ttft_p50_ms": "TTFT p50, ms",
    "ttft_p99_ms": "TTFT p99, ms",
    "tpot_p50_ms": "TPOT p50, ms",
    "tpot_p99_ms": "TPOT p99, ms",
    "warm_start_seconds": "warm start, s",
}
"""Labels of figures, by their keys in JSON documents."""


class KnownFigure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stored figures of one workload; all mappings are by the keys of ``FIGURES``."""

    goals: dict[str, float]
    """Goals."""
    rival: dict[str, float] = {}
    """Measurements of the other engine that have a goal."""
    limits: dict[str, float] = {}
    """Hardware limits."""


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of ``h200.toml``."""

    gpu: str
    model: str
    dtype: str
    rival: str
    offline: dict[str, KnownFigure]
    start: KnownFigure
    served: dict[str, KnownFigure]


@cache
def reference() -> Reference:
    """Read and cache the stored figures."""
    text = resources.files("gatewayd.cli.bench").joinpath("h200.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), Reference)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of one measured figure of a workload with the stored ones.

    Attributes:
        workload: name of the workload.
        figure: a key of ``FIGURES``.
        measured: the measured value.
        rival: value of the other engine; None if it was not measured.
        goal: the goal.
        limit: limit of the hardware of this run; None if unknown.
    """

    workload: str
    figure: str
    measured: float
    rival: float | None
    goal: float
    limit: float | None

    @property
    def is_duration(self) -> bool:
        """Whether less is better."""
        return self.figure.endswith(("_ms", "start_seconds"))

    @property
    def ratio_to_rival(self) -> float | None:
        """Ratio to the other engine; above 1 is better, also for durations."""
        if self.rival is None:
            return None
        if self.is_duration:
            return self.rival / self.measured if self.measured else float("inf")
        return self.measured / self.rival

    @property
    def share_of_limit(self) -> float | None:
        """Achieved fraction of the hardware limit; for a duration, its unavoidable fraction."""
        if self.limit is None:
            return None
        if self.is_duration:
            return self.limit / self.measured if self.measured else float("inf")
        return self.measured / self.limit

    @property
    def meets_goal(self) -> bool:
        """Whether the goal is met."""
        if self.is_duration:
            return self.measured <= self.goal
        return self.measured >= self.goal


def compare(workload: str, known: KnownFigure, measured: Mapping[str, float]) -> list[Comparison]:
    """Compare the measured figures that have a goal with the stored ones."""
    return [
        Comparison(
            workload,
            figure,
            measured[figure],
            known.rival.get(figure),
            goal,
            known.limits.get(figure),
        )
        for figure, goal in known.goals.items()
        if figure in measured
    ]


def differences(gpu: str, model: str, dtype: str, scale: float) -> list[str]:
    """Return how a run differs from the setup of the goals; empty if goals apply to it."""
    wanted = reference()
    found = []
    # On a CPU the only name is empty.
    if not all(wanted.gpu in name for name in gpu.split(", ")):
        found.append(f"the machine is {gpu or 'one without a GPU'}, not an {wanted.gpu}")
    if model != wanted.model:
        found.append(f"the model is {model}, not {wanted.model}")
    if dtype != wanted.dtype:
        found.append(f"the arithmetic is {dtype}, not {wanted.dtype}")
    if scale != 1:
        found.append(f"the workloads are cut to {scale:g}")
    return found
