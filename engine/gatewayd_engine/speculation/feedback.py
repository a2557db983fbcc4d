"""Feedback of step results to drafters: the model's tokens for drafts, and hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.transfers import upload
from gatewayd_engine.process.plugin_faults import attribute_faults
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import StepResult
from gatewayd_engine.strategies.active import Strategies
from gatewayd_hooks.speculation import Choices, FeatureDrafter, Features, LearningDrafter
from gatewayd_hooks.strategy import Kind

_MOST_PENDING = 32
"""Steps whose hidden states are batched: passing them together costs little more than one."""
_MOST_BYTES = 8 << 20
"""Maximum bytes of batched hidden states."""


class _StepFeatures(NamedTuple):
    """Tokens of steps, each of shape ``[n]``, and their hidden states."""

    slots: NDArray[np.int32]
    sequences: NDArray[np.int64]
    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    ids: NDArray[np.int64]
    hidden: torch.Tensor


class Feedback:
    """Feedback of step results to drafters that support it.

    Hidden states are passed before the drafter proposes tokens, and otherwise batched over several
    steps.

    Args:
        strategies: the active drafter.
        queue: tells which rows still belong to the same sequence.
        register: registers those of some slots' rows, both of shape ``[n]``, whose sequence is new
            to the drafter.
    """

    def __init__(
        self,
        strategies: Strategies,
        queue: Queue,
        register: Callable[[NDArray[np.int32], NDArray[np.int64]], None],
    ) -> None:
        self._strategies = strategies
        self._queue = queue
        self._register = register
        self._checked: object = None
        self._learns = self._observes = False
        self._pending: list[_StepFeatures] = []
        self._bytes = 0
        # End position of each row's pending states.
        self._ends = np.zeros(queue.view.max_running, np.int64)

    @property
    def observes(self) -> bool:
        """Whether the drafter uses hidden states."""
        self._check_drafter()
        return self._observes

    def record_step(self, batch: StepBatch, result: StepResult) -> None:
        """Pass the result of a step to the drafter, now or later."""
        self._check_drafter()
        if self._learns:
            self._report_choices(batch, result)
        if self._observes and result.hidden is not None:
            # A preempted sequence restarts: flush first, so that states stay in order.
            if (batch.starts < self._ends[batch.rows]).any():
                self.flush()
            seen = _accepted_features(batch, result, result.hidden)
            self._ends[seen.rows] = seen.positions + 1
            self._pending.append(seen)
            self._bytes += seen.hidden.nbytes
            if len(self._pending) == _MOST_PENDING or self._bytes > _MOST_BYTES:
                self.flush()

    def flush(self) -> None:
        """Pass the pending hidden states of accepted tokens, of sequences still running."""
        self._check_drafter()
        pending = self._drain()
        if not pending:
            return
        queue = self._queue
        seen = pending[0]
        if len(pending) > 1:
            *columns, hidden = zip(*pending, strict=True)
            seen = _StepFeatures._make((*map(np.concatenate, columns), torch.cat(hidden)))
        rows = seen.rows
        runs = np.flatnonzero(
            (queue.ids[seen.slots] == seen.sequences) & (queue.row[seen.slots] == rows)
        )
        # Stable, so that positions ascend within a row, as the contract demands.
        order = runs[np.argsort(rows[runs], kind="stable")]
        if not len(order):
            return
        _, first = np.unique(rows[order], return_index=True)
        self._register(seen.slots[order[first]], rows[order[first]])
        drafter = cast(FeatureDrafter, self._strategies.watched[Kind.DRAFTER])
        # Often nothing changes, and the states need not be gathered.
        is_same = len(order) == len(rows) and bool((order[1:] > order[:-1]).all())
        states = seen.hidden if is_same else _picked(seen.hidden, order)
        with attribute_faults(Kind.DRAFTER):
            drafter.observe(Features(rows[order], seen.positions[order], seen.ids[order], states))

    def _check_drafter(self) -> None:
        """Check what the drafter supports; pending states for a previous one are discarded."""
        drafter = self._strategies.bound.get(Kind.DRAFTER)
        if drafter is not self._checked:
            self._checked = drafter
            self._learns = isinstance(drafter, LearningDrafter)
            self._observes = isinstance(drafter, FeatureDrafter)
            self._drain()

    def _drain(self) -> list[_StepFeatures]:
        pending, self._pending = self._pending, []
        self._bytes = 0
        self._ends[:] = 0
        return pending

    def _report_choices(self, batch: StepBatch, result: StepResult) -> None:
        """Pass the model's tokens for verified drafts."""
        drafts = batch.drafts
        if drafts is None or result.model_tokens is None:
            return
        drafter = cast(LearningDrafter, self._strategies.watched[Kind.DRAFTER])
        entries, model_tokens = result.model_tokens
        has_drafts = drafts.counts[entries] > 0
        entries = entries[has_drafts]
        with attribute_faults(Kind.DRAFTER):
            drafter.learn(
                Choices(
                    batch.rows[entries],
                    drafts.tokens[entries],
                    drafts.counts[entries],
                    model_tokens[has_drafts],
                )
            )


def _accepted_features(batch: StepBatch, result: StepResult, hidden: torch.Tensor) -> _StepFeatures:
    """Select the tokens of a step without rejected drafts."""
    # One token per sequence: there are no drafts.
    if len(batch.ids) == len(batch):
        return _StepFeatures(
            batch.slots, batch.sequences, batch.rows, batch.positions, batch.ids, hidden
        )
    first = batch.last - batch.counts + 1
    settled = batch.settled
    offset = np.arange(len(batch.ids)) - np.repeat(first, batch.counts)
    is_kept = offset < np.repeat(settled, batch.counts)
    if batch.drafts is not None:
        tokens = result.tokens
        width = tokens.nodes.shape[1]
        # A token of rank 0 follows the last settled token; the others each follow an accepted
        # draft, whose states are kept, too.
        own = (np.arange(width) > 0) & (np.arange(width) < tokens.counts[:, None])
        entry, rank = np.nonzero(own)
        of = tokens.entries[entry]
        is_kept[first[of] + settled[of] - 1 + tokens.nodes[entry, rank]] = True
    kept = np.flatnonzero(is_kept)
    entry = np.repeat(np.arange(len(batch)), batch.counts)[kept]
    return _StepFeatures(
        batch.slots[entry],
        batch.sequences[entry],
        batch.rows[entry],
        batch.positions[kept],
        batch.ids[kept],
        hidden if len(kept) == len(hidden) else _picked(hidden, kept),
    )


def _picked(hidden: torch.Tensor, index: NDArray[np.int64]) -> torch.Tensor:
    """Select some of the states, without synchronising with the device."""
    return hidden.index_select(0, upload(index, hidden.device))
