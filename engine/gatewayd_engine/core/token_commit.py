"""Writes down what a batch produced: tokens of each sequence, up to where it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.core.end_checks import find_ends
from gatewayd_engine.process.messages import PooledOutput, TokenLogprobs
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import Tokens

ReportT = TypeVar("ReportT", TokenLogprobs, PooledOutput)


@dataclass(frozen=True, slots=True)
class CommittedTokens:
    """What became of the tokens of a step, by line that got any.

    Attributes:
        kept: tokens that each has got, fewer than were chosen where one of them ends it,
            shape ``[n]``.
        told: how many of those its client is to see: all but an end token, shape ``[n]``.
        over: whether it has ended, shape ``[n]``.
        stop: the token that ended it, -1 for none, shape ``[n]``.
        begins: whether this was its first token, shape ``[n]``.
    """

    kept: NDArray[np.int64]
    told: NDArray[np.int64]
    over: NDArray[np.bool_]
    stop: NDArray[np.int64]
    begins: NDArray[np.bool_]


def write_down(
    queue: Queue, rows: RunningBatch, batch: StepBatch, tokens: Tokens, eos: NDArray[np.int32]
) -> CommittedTokens:
    """Add tokens to their sequences.

    Tokens behind one that ends its sequence are taken out of ``tokens``.

    Args:
        queue: of the sequences.
        rows: with their tokens.
        batch: the step.
        tokens: that came of it.
        eos: end tokens of the model.
    """
    view = queue.view
    slots, row = batch.slots[tokens.lines], batch.rows[tokens.lines]
    lengths = (batch.starts + batch.settled)[tokens.lines]
    n = len(slots)
    kept, told = np.zeros(n, np.int64), np.zeros(n, np.int64)
    over, stop = np.zeros(n, np.bool_), np.full(n, -1, np.int64)
    alive = np.arange(n)
    for rank in range(tokens.ids.shape[1]):
        alive = alive[(tokens.counts[alive] > rank) & ~over[alive]]
        if not len(alive):
            break
        ids = tokens.ids[alive, rank]
        rows.tokens[row[alive], lengths[alive]] = ids
        lengths[alive] += 1
        kept[alive] += 1
        ends = find_ends(rows, row[alive], ids, lengths[alive], eos)
        told[alive] += ~ends
        stop[alive[ends]] = ids[ends]
        over[alive] = ends | (lengths[alive] >= queue.limit[slots[alive]])
    # One was counted when the step was launched.
    view.num_tokens[slots] += kept.astype(np.int32) - 1
    view.num_computed[slots] += kept.astype(np.int32) - 1
    tokens.counts = kept
    begins = (lengths - kept == queue.prompt_len[slots]) & ~over
    return CommittedTokens(kept, told, over, stop, begins)


def first_told(
    reports: list[TokenLogprobs], lines: NDArray[np.int64], told: NDArray[np.int64]
) -> list[TokenLogprobs]:
    """Those of tokens that clients see: so many of each line."""
    if not reports:
        return []
    left = dict(zip(lines.tolist(), told.tolist(), strict=True))
    kept = []
    for report in reports:
        if left.get(report.sequence, 0):
            left[report.sequence] -= 1
            kept.append(report)
    return kept


def named(reports: list[ReportT], ids: NDArray[np.int64]) -> list[ReportT]:
    """Replace lines of the batch by the gateway's sequence ids."""
    return [msgspec.structs.replace(r, sequence=int(ids[r.sequence])) for r in reports]
