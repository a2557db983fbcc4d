"""Detectors: find in a text what a logits processor has left in it. Gateway process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Detection:
    """What the tokens of a text say.

    Attributes:
        num_scored: tokens that say anything.
        num_green: of these, those that a mark would favour.
        z: how far that is above what chance gives, in standard deviations.
        p_value: probability of at least as many by chance.
        is_marked: the verdict; None where there is too little text for one.
    """

    num_scored: int
    num_green: int
    z: float
    p_value: float
    is_marked: bool | None


class Detector(Protocol):
    """Made by ``StrategyInfo.detector`` in the gateway process; imports no torch."""

    def detect(self, tokens: Sequence[int], tenant: str) -> Detection:
        """Look for the mark that a tenant's answers get.

        Args:
            tokens: ids of the text.
            tenant: whose mark; empty, or ``default``, for all who come without a key.
        """
