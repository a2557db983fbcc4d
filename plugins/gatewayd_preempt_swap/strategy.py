"""Preemption of the newest arrival of the lowest class, by swapping to host memory if cheaper."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gatewayd_hooks.preemption import PreemptionMode, SwapCosts, Victim

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources
    from gatewayd_hooks.scheduling import QueueView
    from gatewayd_preempt_swap.config import SwapConfig

_TRIAL = 32
"""Number of preemptions after which one swaps anyway: costs may have changed."""


class Swap:
    """Swaps sequences from a learned length on, and recomputes shorter ones.

    Recomputing n tokens takes ``n * token_seconds``, because the step they are part of happens
    anyway. Swapping takes ``swap_seconds + n / page_size * page_seconds``. Swapping pays from the
    length at which these are equal.
    """

    def __init__(self, config: SwapConfig) -> None:
        self._memory = int(config.memory)
        self._most_pages = 0
        self._page_size = 1
        self._costs = SwapCosts(0.0, 0.0, 0.0, 0)
        self._since_swap = 0

    def open(self, resources: EngineResources) -> None:
        """See ``PreemptionStrategy``."""
        self._page_size = resources.page_size
        self._most_pages = self._memory // max(1, resources.page_bytes)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def learn(self, costs: SwapCosts) -> None:
        """See ``LearnsCosts``."""
        self._costs = costs

    @property
    def crossover(self) -> float:
        """Number of tokens from which swapping pays; 0 before it is measured, infinite if never."""
        costs = self._costs
        gain = costs.token_seconds - costs.page_seconds / self._page_size
        # Not measured yet: the first victim is swapped, to measure it.
        if not costs.swap_seconds and not costs.page_seconds:
            return 0.0
        return costs.swap_seconds / gain if gain > 0 else math.inf

    def victim(self, view: QueueView, candidates: NDArray[np.int32]) -> Victim:
        """Choose the newest of the lowest class; among equals, the one admitted last."""
        # The sort is stable, and candidates are in order of admission.
        order = np.lexsort((view.arrival[candidates], view.priority[candidates]))
        slot = int(candidates[order[-1]])
        return Victim(slot, self._mode(int(view.num_computed[slot])))

    def _mode(self, num_computed: int) -> PreemptionMode:
        pages = -(-num_computed // self._page_size)
        self._since_swap += 1
        if self._costs.kept_pages + pages > self._most_pages:
            return PreemptionMode.RECOMPUTE
        if num_computed < self.crossover and self._since_swap < _TRIAL:
            return PreemptionMode.RECOMPUTE
        self._since_swap = 0
        return PreemptionMode.SWAP
