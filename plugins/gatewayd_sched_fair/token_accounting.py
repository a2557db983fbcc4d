"""Accounting of the tokens that sequences computed since the last step, from the queue's view."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.scheduling import QueueView

_NEW = -1
"""Marks a sequence whose cached length is not known yet."""


class TokenAccounting:
    """Tokens computed by each slot.

    A grant need not be used: the engine may find no pages for it, more tokens may be computed if
    drafts are accepted, and the last one of a sequence is not visible, because its slot is free
    then. So sequences that still run are charged for their progress, and those that ended for their
    grant. What is recomputed after a preemption is charged once.

    Args:
        prompt_cost: of a computed prompt token.
        answer_cost: of a generated token.

    Attributes:
        granted: tokens of the last plan, 0 for none, shape ``[slots]``.
    """

    def __init__(self, prompt_cost: float, answer_cost: float) -> None:
        self._prompt_cost = prompt_cost
        self._answer_cost = answer_cost
        self.granted = np.zeros(0, np.int32)
        self._reached = np.zeros(0, np.int32)
        self._prompt = np.zeros(0, np.int32)
        self._tenant = np.zeros(0, np.int32)
        self._ended: list[tuple[int, float]] = []

    def add_waiting(self, slot: int, view: QueueView) -> None:
        """Add a waiting sequence: a new one, or one that was preempted."""
        self._fit(view)
        is_known = self._prompt[slot] and self._tenant[slot] == view.tenant[slot]
        if view.preemptions[slot] and is_known:
            self.granted[slot] = 0  # it was preempted instead
            return
        if self.granted[slot]:
            # The slot's previous sequence ended with its last step, which is not charged yet.
            last = np.array([slot])
            tenant = int(self._tenant[slot])
            self._ended.append((tenant, float(self._costs(last, self.granted[last])[0])))
        self.granted[slot] = 0
        self._reached[slot] = _NEW
        self._prompt[slot] = view.num_tokens[slot]
        self._tenant[slot] = view.tenant[slot]

    def remove_waiting(self, slot: int) -> None:
        """Discard the grant of a waiting sequence that left."""
        if slot < len(self.granted):
            self.granted[slot] = 0

    def grant(self, slots: NDArray[np.int32], tokens: NDArray[np.int32], view: QueueView) -> None:
        """Record a plan."""
        self.granted[slots] = tokens
        self._tenant[slots] = view.tenant[slots]
        unknown = slots[self._prompt[slots] == 0]  # another scheduler admitted them
        self._reached[unknown] = view.num_computed[unknown]

    def settle(
        self, view: QueueView, waiting: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the service since the last call.

        Args:
            view: the queue.
            waiting: whether each slot waits, shape ``[slots]``.

        Returns:
            Tenants, possibly repeated, and the cost of the service to each.
        """
        self._fit(view)
        slots = np.flatnonzero(self.granted)
        runs = np.zeros(len(self.granted), bool)
        runs[view.running] = True
        granted = self.granted[slots]
        reached = self._reached[slots]
        computed = np.where(runs[slots], view.num_computed[slots], reached + granted)
        # What a new sequence has beyond its grant came from a cache, and is free.
        before = np.where(reached == _NEW, computed - granted, reached)
        served = np.where(waiting[slots], 0, np.maximum(computed - before, 0))
        costs = self._costs(slots, served, before)
        going = slots[runs[slots]]
        # The furthest position ever: what is recomputed after a preemption is free.
        self._reached[going] = np.maximum(self._reached[going], view.num_computed[going])
        tenants = self._tenant[slots]
        self.granted[slots] = 0
        if self._ended:
            ended, self._ended = self._ended, []
            tenants = np.concatenate([tenants, np.array([t for t, _ in ended], np.int32)])
            costs = np.concatenate([costs, np.array([cost for _, cost in ended])])
        return tenants, costs

    def costs_of(
        self, slots: NDArray[np.int32], tokens: NDArray[np.int32], view: QueueView
    ) -> NDArray[np.float64]:
        """Return the cost of tokens that running sequences may compute next, shape ``[n]``."""
        self._fit(view)
        return self._costs(slots, tokens, view.num_computed[slots])

    def _costs(
        self,
        slots: NDArray[np.int32] | NDArray[np.int64],
        tokens: NDArray[np.int32],
        before: NDArray[np.int32] | None = None,
    ) -> NDArray[np.float64]:
        if before is None:
            before = np.maximum(self._reached[slots], 0)
        of_prompt = np.clip(self._prompt[slots] - before, 0, tokens)
        cost: NDArray[np.float64] = (
            of_prompt * self._prompt_cost + (tokens - of_prompt) * self._answer_cost
        )
        return cost

    def _fit(self, view: QueueView) -> None:
        """Grow with the columns."""
        more = len(view.num_tokens) - len(self.granted)
        if more <= 0:
            return
        for name in ("granted", "_reached", "_prompt", "_tenant"):
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(more, np.int32)]))
