"""Shows a drafter what came of a step: what the model said to its drafts, and hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.batch import StepBatch
from gatewayd_engine.faults import blame
from gatewayd_engine.result import StepResult
from gatewayd_engine.strategies import Strategies
from gatewayd_hooks.speculation import Choices, FeatureDrafter, Features, LearningDrafter
from gatewayd_hooks.strategy import Kind


class Feedback:
    """For drafters that want any.

    Args:
        strategies: has the drafter.
        introduce: tells it which of some slots' rows, both of shape ``[n]``, have another sequence
            than it knows.
    """

    def __init__(
        self,
        strategies: Strategies,
        introduce: Callable[[NDArray[np.int32], NDArray[np.int64]], None],
    ) -> None:
        self._strategies = strategies
        self._introduce = introduce
        self._looked_at: object = None
        self._learns = self._observes = False

    def give(self, batch: StepBatch, result: StepResult) -> None:
        """Show it a step."""
        drafter = self._strategies.bound.get(Kind.DRAFTER)
        if drafter is not self._looked_at:
            self._looked_at = drafter
            self._learns = isinstance(drafter, LearningDrafter)
            self._observes = isinstance(drafter, FeatureDrafter)
        if self._learns:
            self._teach(batch, result)
        if self._observes:
            self._show_features(batch, result)

    def _teach(self, batch: StepBatch, result: StepResult) -> None:
        """What the model said to the drafts."""
        drafts = batch.drafts
        if drafts is None or result.said is None:
            return
        drafter = cast(LearningDrafter, self._strategies.watched[Kind.DRAFTER])
        lines, said = result.said
        had_some = drafts.counts[lines] > 0
        lines = lines[had_some]
        with blame(Kind.DRAFTER):
            drafter.learn(
                Choices(
                    batch.rows[lines], drafts.tokens[lines], drafts.counts[lines], said[had_some]
                )
            )

    def _show_features(self, batch: StepBatch, result: StepResult) -> None:
        """The hidden states of tokens that are settled."""
        if result.hidden is None:
            return
        drafter = cast(FeatureDrafter, self._strategies.watched[Kind.DRAFTER])
        self._introduce(batch.slots, batch.rows)
        settled = batch.settled
        first = batch.last - batch.counts + 1
        offset = np.arange(len(batch.ids)) - np.repeat(first, batch.counts)
        is_kept = offset < np.repeat(settled, batch.counts)
        if batch.drafts is not None:
            tokens = result.tokens
            width = tokens.nodes.shape[1]
            own = (np.arange(width) > 0) & (np.arange(width) < tokens.counts[:, None])
            line, rank = np.nonzero(own)
            of = tokens.lines[line]
            is_kept[first[of] + settled[of] - 1 + tokens.nodes[line, rank]] = True
        kept = np.flatnonzero(is_kept)
        row = np.repeat(batch.rows, batch.counts)[kept]
        hidden = result.hidden
        if len(kept) < len(hidden):
            hidden = hidden[torch.from_numpy(kept)]
        with blame(Kind.DRAFTER):
            drafter.observe(Features(row, batch.positions[kept], batch.ids[kept], hidden))
