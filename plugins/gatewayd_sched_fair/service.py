"""What sequences were served since the last step, seen from what the queue shows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.scheduling import QueueView

_NEW = -1
"""Reached by a sequence of which nobody has seen how much of it was cached."""


class Service:
    """Who computed how much, by slot.

    A grant is a promise: the engine may find no pages for it, drafts may be kept beyond it, and
    the last one of a sequence is seen by nobody, because its slot is free then. So those who still
    run are charged for how far they came, and those who ended for what they were granted. What is
    computed again after a preemption is charged once.

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

    def begin(self, slot: int, view: QueueView) -> None:
        """A sequence waits: a new one, or one that ran before."""
        self._fit(view)
        is_known = self._prompt[slot] and self._tenant[slot] == view.tenant[slot]
        if view.preemptions[slot] and is_known:
            self.granted[slot] = 0  # it was put out instead
            return
        if self.granted[slot]:
            # The one before had the slot until its last step, which is not charged yet.
            last = np.array([slot])
            tenant = int(self._tenant[slot])
            self._ended.append((tenant, float(self._costs(last, self.granted[last])[0])))
        self.granted[slot] = 0
        self._reached[slot] = _NEW
        self._prompt[slot] = view.num_tokens[slot]
        self._tenant[slot] = view.tenant[slot]

    def gone(self, slot: int) -> None:
        """A waiting sequence is no more."""
        if slot < len(self.granted):
            self.granted[slot] = 0

    def grant(self, slots: NDArray[np.int32], tokens: NDArray[np.int32], view: QueueView) -> None:
        """A plan was made."""
        self.granted[slots] = tokens
        self._tenant[slots] = view.tenant[slots]
        strange = slots[self._prompt[slots] == 0]  # another scheduler admitted them
        self._reached[strange] = view.num_computed[strange]

    def settle(
        self, view: QueueView, waiting: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """What was served since the last time.

        Args:
            view: the queue.
            waiting: who waits, shape ``[slots]``.

        Returns:
            Tenants, some of them several times, and the cost of what each was served.
        """
        self._fit(view)
        slots = np.flatnonzero(self.granted)
        runs = np.zeros(len(self.granted), bool)
        runs[view.running] = True
        granted = self.granted[slots]
        reached = self._reached[slots]
        computed = np.where(runs[slots], view.num_computed[slots], reached + granted)
        before = np.where(reached == _NEW, computed - granted, reached)
        served = np.where(waiting[slots], 0, np.maximum(computed - before, 0))
        costs = self._costs(slots, served, before)
        going = slots[runs[slots]]
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
        """Cost of tokens that running sequences may compute next, shape ``[n]``."""
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
