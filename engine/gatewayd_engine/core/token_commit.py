"""Commit of a step's sampled tokens to their sequences, up to where each sequence ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.process.messages import PooledOutput, TokenLogprobs
from gatewayd_engine.state.queue import Queue
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import Tokens

ReportT = TypeVar("ReportT", TokenLogprobs, PooledOutput)


@dataclass(frozen=True, slots=True)
class CommittedTokens:
    """Result of committing a step's tokens, by batch entry that got any.

    Attributes:
        kept: tokens committed, fewer than were sampled where one of them ends the sequence,
            shape ``[n]``.
        visible: how many of those are sent to the client: all but an end token, shape ``[n]``.
        over: whether the sequence has ended, shape ``[n]``.
        stop: the token that ended it, -1 for none, shape ``[n]``.
        begins: whether this was its first token, shape ``[n]``.
    """

    kept: NDArray[np.int64]
    visible: NDArray[np.int64]
    over: NDArray[np.bool_]
    stop: NDArray[np.int64]
    begins: NDArray[np.bool_]


def commit_tokens(
    queue: Queue, rows: RunningBatch, batch: StepBatch, tokens: Tokens, eos: NDArray[np.int32]
) -> CommittedTokens:
    """Append sampled tokens to their sequences.

    Tokens after one that ends its sequence are removed from ``tokens``.

    Args:
        queue: the engine's sequence table.
        rows: batch rows with the token ids.
        batch: the step.
        tokens: sampled tokens of the step.
        eos: end-of-sequence tokens of the model.
    """
    view = queue.view
    slots, row = batch.slots[tokens.entries], batch.rows[tokens.entries]
    lengths = (batch.starts + batch.settled)[tokens.entries]
    n = len(slots)
    if tokens.ids.shape[1] == 1:
        # Without drafts: each has one token, which was counted when the step was launched.
        ids = tokens.ids[:, 0]
        rows.tokens[row, lengths] = ids
        begins = lengths == queue.prompt_len[slots]
        lengths += 1
        ends = _find_ends(rows, row, ids, lengths, eos)
        over = lengths >= queue.limit[slots]
        if ends.any():
            over |= ends
            stop = np.where(ends, ids, np.int64(-1))
        else:
            stop = np.full(n, -1, np.int64)
        begins &= ~over
        return CommittedTokens(tokens.counts, (~ends).astype(np.int64), over, stop, begins)
    kept, visible = np.zeros(n, np.int64), np.zeros(n, np.int64)
    over, stop = np.zeros(n, np.bool_), np.full(n, -1, np.int64)
    alive = np.arange(n)
    # One iteration per position, for all sequences at once; without drafts there is one.
    for rank in range(tokens.ids.shape[1]):
        alive = alive[(tokens.counts[alive] > rank) & ~over[alive]]
        if not len(alive):
            break
        ids = tokens.ids[alive, rank]
        # Overwrites the row's drafts, accepted or not.
        rows.tokens[row[alive], lengths[alive]] = ids
        lengths[alive] += 1
        kept[alive] += 1
        ends = _find_ends(rows, row[alive], ids, lengths[alive], eos)
        # An end token is not sent; the last token at the length limit is.
        visible[alive] += ~ends
        stop[alive[ends]] = ids[ends]
        over[alive] = ends | (lengths[alive] >= queue.limit[slots[alive]])
    # One token was counted when the step was launched.
    view.num_tokens[slots] += kept.astype(np.int32) - 1
    # Accepted drafts have keys and values; the last token is the next step's input.
    view.num_computed[slots] += kept.astype(np.int32) - 1
    # The report to the speculation controller, made later, must not count tokens beyond an end.
    tokens.counts = kept
    begins = (lengths - kept == queue.prompt_len[slots]) & ~over
    return CommittedTokens(kept, visible, over, stop, begins)


def visible_logprobs(
    reports: list[TokenLogprobs], entries: NDArray[np.int64], visible: NDArray[np.int64]
) -> list[TokenLogprobs]:
    """Return the logprobs of tokens that clients see, given their number per batch entry."""
    if not reports:
        return []
    # Reports are in the order of the tokens, so the first ones of an entry are the visible ones.
    left = dict(zip(entries.tolist(), visible.tolist(), strict=True))
    kept = []
    for report in reports:
        if left.get(report.sequence, 0):
            left[report.sequence] -= 1
            kept.append(report)
    return kept


def with_sequence_ids(reports: list[ReportT], ids: NDArray[np.int64]) -> list[ReportT]:
    """Replace batch indices by the gateway's sequence ids."""
    return [msgspec.structs.replace(r, sequence=int(ids[r.sequence])) for r in reports]


def _find_ends(
    rows: RunningBatch,
    row: NDArray[np.int64],
    tokens: NDArray[np.int32],
    lengths: NDArray[np.int32],
    eos: NDArray[np.int32],
) -> NDArray[np.bool_]:
    """Find end-of-sequence and stop tokens where the sequence is long enough to end.

    Args:
        rows: the running batch.
        row: batch row of each token, shape ``[n]``.
        tokens: sampled token ids, shape ``[n]``.
        lengths: length of each sequence including the token, shape ``[n]``.
        eos: end-of-sequence tokens of the model.
    """
    # A model has few of them: comparing with each is cheaper than preparing a search.
    ends: NDArray[np.bool_] = (tokens[:, None] == eos).any(1)
    ends &= ~rows.ignores_eos[row]
    # Only rows with stop tokens of their own need a Python loop.
    for i in rows.has_stop_tokens[row].nonzero()[0].tolist():
        ends[i] |= int(tokens[i]) in rows.stop_tokens[int(row[i])]
    # Strictly, because the length includes the end token, which does not count as output.
    return ends & (lengths > rows.min_len[row])
