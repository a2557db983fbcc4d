"""Preemption: who gives up its pages when a running sequence finds none, and how."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources
    from gatewayd_hooks.scheduling import QueueView


MAX_PREEMPTIONS = 3
"""Times a sequence gives way to others before it is spared, while there are others."""


class PreemptionMode(StrEnum):
    """What becomes of a victim's KV."""

    RECOMPUTE = "recompute"
    """Its pages are released; it computes again what the prefix cache has lost by then."""

    SWAP = "swap"
    """What it has computed is copied to the host's memory, and comes back bit for bit."""


class Victim(NamedTuple):
    """A sequence that has to wait again."""

    slot: int
    mode: PreemptionMode


@dataclass(frozen=True, slots=True)
class SwapCosts:
    """What the engine has measured so far; 0 for what it has not.

    Attributes:
        token_seconds: to compute a token more in a step.
        swap_seconds: to copy out and back, whatever the length.
        page_seconds: to copy out and back, for each page more.
        kept_pages: pages that swapped sequences take in the host's memory now.
    """

    token_seconds: float
    swap_seconds: float
    page_seconds: float
    kept_pages: int


class PreemptionStrategy(Strategy, Protocol):
    """Chooses the victim. It may also have the method of ``LearnsCosts``."""

    def open(self, resources: EngineResources) -> None:
        """Learn the engine's sizes."""

    def victim(self, view: QueueView, candidates: NDArray[np.int32]) -> Victim:
        """Choose one of the candidates.

        Args:
            view: the queue as the scheduler sees it.
            candidates: running slots that may be preempted, in order of admission, at least
                one. The sequence in need may be among them and its own victim. Who was
                preempted several times already is missing while there are others.
        """


class LearnsCosts(Protocol):
    """A preemption that weighs swapping against computing again."""

    def learn(self, costs: SwapCosts) -> None:
        """Take note of what has been measured; told before each ``victim``."""
