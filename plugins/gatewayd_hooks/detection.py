"""Watermark detectors: find the mark of a logits processor in a text. Gateway process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Detection:
    """Result of testing the tokens of a text for a watermark.

    Attributes:
        num_scored: tokens that count in the test.
        num_green: of these, tokens that the watermark favours.
        z: deviation from the number expected by chance, in standard deviations.
        p_value: probability of at least as many by chance.
        is_marked: verdict; None if the text is too short for one.
    """

    num_scored: int
    num_green: int
    z: float
    p_value: float
    is_marked: bool | None


class Detector(Protocol):
    """Created by ``StrategyInfo.detector`` in the gateway process; does not import torch."""

    def detect(self, tokens: Sequence[int], tenant: str) -> Detection:
        """Test for the watermark of a tenant's answers.

        Args:
            tokens: ids of the text.
            tenant: whose watermark; empty or ``default`` for clients without a key.
        """
