"""What was measured on one H200 before, our goals there, and how a run compares with them."""

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
"""Figures by the key that they have in documents."""


class KnownFigure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of one workload; every mapping is from a key of ``FIGURES``."""

    goals: dict[str, float]
    """What is to be reached."""
    rival: dict[str, float] = {}
    """What the other engine measured."""
    limits: dict[str, float] = {}
    """What the hardware allows at most."""


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file ``h200.toml``."""

    gpu: str
    model: str
    dtype: str
    rival: str
    offline: dict[str, KnownFigure]
    start: KnownFigure
    served: dict[str, KnownFigure]


@cache
def reference() -> Reference:
    """Read the stored figures."""
    text = resources.files("gatewayd.cli.bench").joinpath("h200.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), Reference)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one workload beside the stored ones.

    Attributes:
        workload: its name.
        figure: a key of ``FIGURES``.
        measured: ours.
        rival: the other engine's; None if it was not measured.
        goal: ours to reach.
        limit: of the hardware that computed; None if it is not known.
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
    def times_rival(self) -> float | None:
        """How many times as good as the other engine; above 1 is better, for durations too."""
        if self.rival is None:
            return None
        if self.is_duration:
            return self.rival / self.measured if self.measured else float("inf")
        return self.measured / self.rival

    @property
    def share_of_limit(self) -> float | None:
        """Which part of what the hardware allows; for a duration, its unavoidable part."""
        if self.limit is None:
            return None
        if self.is_duration:
            return self.limit / self.measured if self.measured else float("inf")
        return self.measured / self.limit

    @property
    def is_kept(self) -> bool:
        """Whether the goal is reached."""
        if self.is_duration:
            return self.measured <= self.goal
        return self.measured >= self.goal


def compare(workload: str, known: KnownFigure, measured: Mapping[str, float]) -> list[Comparison]:
    """Lay the figures for which there is a goal beside the stored ones."""
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
    """In which ways a run is not the one that the goals were set for; none of them: a verdict."""
    wanted = reference()
    found = []
    if not all(wanted.gpu in name for name in gpu.split(", ")):
        found.append(f"the machine is {gpu or 'one without a GPU'}, not an {wanted.gpu}")
    if model != wanted.model:
        found.append(f"the model is {model}, not {wanted.model}")
    if dtype != wanted.dtype:
        found.append(f"the arithmetic is {dtype}, not {wanted.dtype}")
    if scale != 1:
        found.append(f"the workloads are cut to {scale:g}")
    return found
