"""What a row measures, and how far its answer may be from the twin's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

Call = Callable[[], object]
Tensors = tuple[torch.Tensor, ...]
MOST_ERROR = 2e-2
"""Relative to the length of the answer, or the part of integers that differ."""


class NoTime(Exception):
    """The seconds of a part are over, or a row would take them."""


class Trial(NamedTuple):
    """Something to measure.

    Attributes:
        calls: launched one behind another; the time of one of them counts.
        answer: what it computes.
        wanted: what it should compute.
        read: bytes of weights, or of keys and values, that a call reads; 0 where launching counts.
        note: said beside the time.
    """

    calls: Sequence[Call]
    answer: Callable[[], Tensors]
    wanted: Callable[[], Tensors]
    read: int = 0
    note: str = ""


def apart(mine: torch.Tensor, wanted: torch.Tensor) -> float:
    """How far one answer is from the other: see ``MOST_ERROR``."""
    if not mine.is_floating_point():
        return float((mine != wanted).float().mean())
    length = wanted.float().norm().clamp_min(1e-30)
    return float((mine.float() - wanted.float()).norm() / length)
