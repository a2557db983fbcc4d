"""Preemption: which running sequence releases its pages when none are free, and how."""

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
"""Preemptions of a sequence after which it is spared, while there are other candidates."""


class PreemptionMode(StrEnum):
    """Treatment of a victim's KV."""

    RECOMPUTE = "recompute"
    """Its pages are released; what the prefix cache no longer has is computed again."""

    SWAP = "swap"
    """Its computed KV is copied to host memory, and restored bit for bit."""


class Victim(NamedTuple):
    """Sequence to preempt."""

    slot: int
    mode: PreemptionMode


@dataclass(frozen=True, slots=True)
class SwapCosts:
    """Costs measured by the engine; 0 where not measured yet.

    Attributes:
        token_seconds: time to compute one more token in a step.
        swap_seconds: fixed time to copy out and back, for any length.
        page_seconds: additional time to copy out and back, per page.
        kept_pages: pages that swapped sequences use in host memory now.
    """

    token_seconds: float
    swap_seconds: float
    page_seconds: float
    kept_pages: int


class PreemptionStrategy(Strategy, Protocol):
    """Chooses the victim. It may also implement ``LearnsCosts``."""

    def open(self, resources: EngineResources) -> None:
        """Read the engine's sizes."""

    def victim(self, view: QueueView, candidates: NDArray[np.int32]) -> Victim:
        """Choose one of the candidates.

        Args:
            view: the queue as the scheduler sees it.
            candidates: running slots that may be preempted, in order of admission, at least one.
                The sequence that needs pages may be among them and be chosen itself. Sequences that
                were preempted ``MAX_PREEMPTIONS`` times are omitted while there are others.
        """


class LearnsCosts(Protocol):
    """Optional part of a preemption strategy that weighs swapping against recomputation."""

    def learn(self, costs: SwapCosts) -> None:
        """Update the measured costs; called before each ``victim``."""
