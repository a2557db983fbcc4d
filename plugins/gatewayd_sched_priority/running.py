"""Token needs of a class's running sequences, and the part that fits a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gatewayd_hooks.scheduling import QueueView


class Grants(NamedTuple):
    """Tokens granted to sequences."""

    slots: NDArray[np.int32]
    """Shape ``[n]``."""
    tokens: NDArray[np.int32]
    """Shape ``[n]``."""

    @property
    def total(self) -> int:
        """Sum of the tokens."""
        return int(self.tokens.sum())

    def cut(self, budget: int) -> Grants:
        """Return the first grants that fit into a budget; the last of them may be partial."""
        if self.total <= budget:
            return self
        reach = np.cumsum(self.tokens)
        # The first grants up to the one that reaches the budget.
        count = int(np.searchsorted(reach, budget)) + 1 if budget else 0
        tokens = self.tokens[:count].copy()
        if count:
            tokens[-1] -= reach[count - 1] - budget
        return Grants(self.slots[:count], tokens)


def running_demand(view: QueueView, number: int) -> Grants:
    """Return all needs of a class's running sequences: decodes, then chunks, by admission."""
    slots = view.running[view.priority[view.running] == number]
    tokens = view.num_tokens[slots] - view.num_computed[slots]
    order = np.argsort(tokens > 1, kind="stable")
    return Grants(slots[order], tokens[order])
