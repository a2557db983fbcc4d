"""Preemption: who gives up its pages when a running sequence finds none, and how."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources
    from gatewayd_hooks.scheduling import QueueView


class PreemptionMode(StrEnum):
    """What becomes of a victim's KV."""

    RECOMPUTE = "recompute"
    """Its pages are released; it computes again what the prefix cache has lost by then."""


class Victim(NamedTuple):
    """A sequence that has to wait again."""

    slot: int
    mode: PreemptionMode


class PreemptionStrategy(Strategy, Protocol):
    """Chooses the victim."""

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
