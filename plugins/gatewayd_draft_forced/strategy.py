"""Drafts the tokens that logits processors force, at no cost.

Where a grammar allows a single token (the name of a field, a bracket that must close) no model is
needed to predict it; several such tokens in a row take one step instead of one each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gatewayd_hooks.speculation import DraftBatch, Drafts

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources


def _nothing(row: int) -> Sequence[int]:
    return ()


class Forced:
    """Drafts forced tokens, and nothing else."""

    def __init__(self) -> None:
        self._forced: Callable[[int], Sequence[int]] = _nothing

    def open(self, resources: EngineResources) -> None:
        """Store the source of forced tokens."""
        self._forced = resources.forced or _nothing

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def admit(self, row: int) -> None:
        """Do nothing: processors track their rows themselves."""

    def propose(self, batch: DraftBatch) -> Drafts:
        """Return the forced tokens of each row, up to its limit."""
        n = len(batch.rows)
        tokens = np.zeros((n, int(batch.limits.max(initial=0))), np.int32)
        counts = np.zeros(n, np.int32)
        for i, row in enumerate(batch.rows.tolist()):
            forced = self._forced(row)[: int(batch.limits[i])]
            counts[i] = len(forced)
            tokens[i, : counts[i]] = forced
        return Drafts(tokens, counts)
