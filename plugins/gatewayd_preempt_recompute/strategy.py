"""Who loses least gives way: the lowest class, then the newest arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gatewayd_hooks.preemption import PreemptionMode, Victim

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources
    from gatewayd_hooks.scheduling import QueueView


class Recompute:
    """Releases the victim's pages; what the prefix cache keeps of them need not be redone.

    The oldest sequence of the highest class is never chosen while another runs, so it always
    gets on, and so does the whole.
    """

    def open(self, resources: EngineResources) -> None:
        """The engine's sizes do not matter here."""

    def close(self) -> None:
        """Nothing to give back."""

    def victim(self, view: QueueView, candidates: NDArray[np.int32]) -> Victim:
        """Choose the newest of the lowest class; of equals, the one admitted last."""
        order = np.lexsort((view.arrival[candidates], view.priority[candidates]))
        return Victim(int(candidates[order[-1]]), PreemptionMode.RECOMPUTE)
