"""Who loses least gives way; what it computed is kept in host memory where that pays."""

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
"""Preemptions after which one is swapped all the same: what it costs may have changed."""


class Swap:
    """Swaps sequences from a length on that is learned, and lets shorter ones compute again.

    Computing n tokens again takes ``n * token_seconds``, for the step it is part of happens
    anyway. Swapping takes ``swap_seconds + n / page_size * page_seconds``. Where the lines cross
    is the length from which swapping pays.
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
        """Nothing to give back."""

    def learn(self, costs: SwapCosts) -> None:
        """See ``LearnsCosts``."""
        self._costs = costs

    @property
    def crossover(self) -> float:
        """Tokens from which swapping pays; 0 until it was measured, infinite if never."""
        costs = self._costs
        gain = costs.token_seconds - costs.page_seconds / self._page_size
        if not costs.swap_seconds and not costs.page_seconds:
            return 0.0
        return costs.swap_seconds / gain if gain > 0 else math.inf

    def victim(self, view: QueueView, candidates: NDArray[np.int32]) -> Victim:
        """Choose the newest of the lowest class; of equals, the one admitted last."""
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
