"""Goals of the CPU comparison: how many times llama.cpp's figure ours should be."""

from __future__ import annotations

from tests.bench.cpu.models import BILLION, FLOATS, NANO
from tests.bench.cpu.record import Cell

AGAINST_GENERATE = {"batch 1": 3.5, "batch 32": 2.0}
_NANO = {
    "concurrency 1": 1.2,
    "concurrency 8": 1.8,
    "concurrency 32": 2.2,
    "concurrency 64": 2.0,
}
_SHARED = 3.0
_PROMPTS = 2.0
_QUANTIZED = {"concurrency 1": 1.0, "concurrency 8": 1.3}
_BFLOAT16 = 1.0


def goal(cell: Cell, figure: str) -> float | None:
    """The least ratio to llama.cpp's figure; None where none is set.

    Args:
        cell: with a machine of its own.
        figure: ``tok/s``, ``decode tok/s``, ``prompt tok/s`` or ``requests/s``.
    """
    if cell.load:
        return None
    if cell.model == NANO:
        if cell.scheme != "f32":
            return None
        return _SHARED if figure == "requests/s" else _NANO.get(cell.workload)
    if cell.model == BILLION and figure == "prompt tok/s":
        return _PROMPTS
    if cell.model == BILLION and figure == "decode tok/s":
        if cell.scheme == "bf16":
            return _BFLOAT16
        return None if cell.scheme in FLOATS else _QUANTIZED.get(cell.workload)
    return None
