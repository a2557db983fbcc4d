"""What a GPU's timeline says, and where figures are written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LONG_GAP = 5.0
"""Microseconds. Kernels of one graph follow one another faster; longer ones wait for the host."""
MOST_WAITING = 0.03
"""Share of the time in long gaps. Of ``idle`` there is no bound: some 331 launches of a graph have
about a microsecond between them, 5 to 7 % of a step of 6 ms, however quick the host is."""


def timeline(kernels: Iterable[tuple[float, float]]) -> dict[str, float]:
    """How busy a device was between its first kernel and its last.

    Args:
        kernels: when each began and how long it took, microseconds; they may overlap.

    Returns:
        ``seconds`` of the whole, the ``idle`` share of it, and the share in gaps that are longer
        than ``LONG_GAP``.
    """
    busy_until = began = None
    idle = long = 0.0
    for start, duration in sorted(kernels):
        if busy_until is None:
            began = busy_until = start
        gap = max(0.0, start - busy_until)
        idle += gap
        long += gap if gap > LONG_GAP else 0.0
        busy_until = max(busy_until, start + duration)
    if began is None or busy_until is None or busy_until == began:
        raise ValueError("the timeline has no kernels")
    whole = busy_until - began
    return {"seconds": whole / 1e6, "idle": idle / whole, "idle_in_long_gaps": long / whole}


def keeps_busy(found: Mapping[str, float]) -> bool:
    """Whether the device of a ``timeline`` hardly ever waited for the host."""
    return found["idle_in_long_gaps"] < MOST_WAITING


def kernels_of(trace: Path) -> list[tuple[float, float]]:
    """The kernels of a trace of torch's profiler."""
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    return [(float(e["ts"]), float(e["dur"])) for e in events if e.get("cat") == "kernel"]


def write(name: str, figures: dict[str, Any]) -> None:
    """Add figures to ``$OUT/timeline.json``, if there is such a folder."""
    folder = os.environ.get("OUT")
    if not folder:
        return
    file = Path(folder) / "timeline.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(file.read_text("utf-8")) if file.exists() else {}
    file.write_text(json.dumps({**before, name: figures}, indent=2) + "\n", "utf-8")
