"""Shows a drafter what came of a step: what the model said to its drafts, and hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.transfers import upload
from gatewayd_engine.process.plugin_faults import blame
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import StepResult
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.speculation import Choices, FeatureDrafter, Features, LearningDrafter
from gatewayd_hooks.strategy import Kind

_MOST_WAITING = 32
"""Steps whose hidden states wait to be shown together: it costs nearly the same as for one."""
_MOST_BYTES = 8 << 20
"""Of hidden states that wait."""


class _Seen(NamedTuple):
    """Tokens of a step, each of shape ``[n]``, and their hidden states."""

    slots: NDArray[np.int32]
    sequences: NDArray[np.int64]
    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    ids: NDArray[np.int64]
    hidden: torch.Tensor


class Feedback:
    """For drafters that want any.

    Hidden states are shown when the drafter is to guess, and while it is not, for many steps at
    once.

    Args:
        strategies: has the drafter.
        queue: knows whose rows are still theirs.
        introduce: tells it which of some slots' rows, both of shape ``[n]``, have another sequence
            than it knows.
    """

    def __init__(
        self,
        strategies: Strategies,
        queue: Queue,
        introduce: Callable[[NDArray[np.int32], NDArray[np.int64]], None],
    ) -> None:
        self._strategies = strategies
        self._queue = queue
        self._introduce = introduce
        self._looked_at: object = None
        self._learns = self._observes = False
        self._waiting: list[_Seen] = []
        self._bytes = 0
        # Where the states of a row that wait end.
        self._ends = np.zeros(queue.view.max_running, np.int64)

    @property
    def observes(self) -> bool:
        """Whether the drafter looks at hidden states."""
        self._look()
        return self._observes

    def give(self, batch: StepBatch, result: StepResult) -> None:
        """Show it a step, now or later."""
        self._look()
        if self._learns:
            self._teach(batch, result)
        if self._observes and result.hidden is not None:
            # A sequence that comes back begins anew: what is shown at once stays in order.
            if (batch.starts < self._ends[batch.rows]).any():
                self.show()
            seen = _see(batch, result, result.hidden)
            self._ends[seen.rows] = seen.positions + 1
            self._waiting.append(seen)
            self._bytes += seen.hidden.nbytes
            if len(self._waiting) == _MOST_WAITING or self._bytes > _MOST_BYTES:
                self.show()

    def show(self) -> None:
        """Show it the hidden states of tokens that are settled, of sequences that still run."""
        self._look()
        waiting = self._forget()
        if not waiting:
            return
        queue = self._queue
        seen = waiting[0]
        if len(waiting) > 1:
            *columns, hidden = zip(*waiting, strict=True)
            seen = _Seen._make((*map(np.concatenate, columns), torch.cat(hidden)))
        rows = seen.rows
        runs = np.flatnonzero(
            (queue.ids[seen.slots] == seen.sequences) & (queue.row[seen.slots] == rows)
        )
        order = runs[np.argsort(rows[runs], kind="stable")]
        if not len(order):
            return
        _, first = np.unique(rows[order], return_index=True)
        self._introduce(seen.slots[order[first]], rows[order[first]])
        drafter = cast(FeatureDrafter, self._strategies.watched[Kind.DRAFTER])
        is_same = len(order) == len(rows) and bool((order[1:] > order[:-1]).all())
        states = seen.hidden if is_same else _picked(seen.hidden, order)
        with blame(Kind.DRAFTER):
            drafter.observe(Features(rows[order], seen.positions[order], seen.ids[order], states))

    def _look(self) -> None:
        """Another drafter may want other things; what waits was for the one before."""
        drafter = self._strategies.bound.get(Kind.DRAFTER)
        if drafter is not self._looked_at:
            self._looked_at = drafter
            self._learns = isinstance(drafter, LearningDrafter)
            self._observes = isinstance(drafter, FeatureDrafter)
            self._forget()

    def _forget(self) -> list[_Seen]:
        waiting, self._waiting = self._waiting, []
        self._bytes = 0
        self._ends[:] = 0
        return waiting

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


def _see(batch: StepBatch, result: StepResult, hidden: torch.Tensor) -> _Seen:
    """Leave out drafts that were not kept."""
    if len(batch.ids) == len(batch):
        return _Seen(batch.slots, batch.sequences, batch.rows, batch.positions, batch.ids, hidden)
    first = batch.last - batch.counts + 1
    settled = batch.settled
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
    line = np.repeat(np.arange(len(batch)), batch.counts)[kept]
    return _Seen(
        batch.slots[line],
        batch.sequences[line],
        batch.rows[line],
        batch.positions[kept],
        batch.ids[kept],
        hidden if len(kept) == len(hidden) else _picked(hidden, kept),
    )


def _picked(hidden: torch.Tensor, index: NDArray[np.int64]) -> torch.Tensor:
    """Some of the states; a device is not waited for."""
    return hidden.index_select(0, upload(index, hidden.device))
