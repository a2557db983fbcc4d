"""What the CPU runner asks of an attention backend."""

from __future__ import annotations

from typing import Protocol

from gatewayd_engine.model.attention_api import Attend
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import Tokens


class AttentionBackend(Attend, Protocol):
    """Attention that plans each step before its layers are called."""

    def plan(self, batch: StepBatch) -> None:
        """Plan the attention of one step, for all of its layers."""

    def compact(self, batch: StepBatch, tokens: Tokens) -> None:
        """Move the keys and values of accepted tree drafts to the positions of their tokens."""

    def zero_kv(self, batch: StepBatch, line: int, first: int, end: int) -> None:
        """Zero the keys and values of positions ``first`` to ``end`` of a sequence in the pool."""

    def discard_copies(self) -> None:
        """Discard all state outside the pool, as the last step may have written NaN to it."""
