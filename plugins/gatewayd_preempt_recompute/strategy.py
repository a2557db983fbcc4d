"""Preemption by recomputation: the victim is the newest arrival of the lowest class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gatewayd_hooks.preemption import PreemptionMode, Victim

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources
    from gatewayd_hooks.scheduling import QueueView


class Recompute:
    """Releases the victim's pages; those still in the prefix cache need not be recomputed.

    The oldest sequence of the highest class is never chosen while another runs, so it always
    progresses, which excludes livelock.
    """

    def open(self, resources: EngineResources) -> None:
        """Do nothing: the engine's sizes do not matter."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def victim(self, view: QueueView, candidates: NDArray[np.int32]) -> Victim:
        """Choose the newest of the lowest class; among equals, the one admitted last."""
        # The sort is stable, and candidates are in order of admission.
        order = np.lexsort((view.arrival[candidates], view.priority[candidates]))
        return Victim(int(candidates[order[-1]]), PreemptionMode.RECOMPUTE)
