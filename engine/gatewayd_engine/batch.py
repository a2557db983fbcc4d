"""The inputs of one step, gathered from the rows it computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.rows import Rows


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Sequences of one step: first those that compute one token, longest first, then chunks.

    Tokens are flat: all of the first sequence, then all of the second.

    Attributes:
        slots, rows: who they are, shape ``[n]``.
        sequences: the gateway's numbers for them, shape ``[n]``.
        starts: tokens that each had computed before, shape ``[n]``.
        counts: tokens that each computes now, shape ``[n]``.
        num_single: how many sequences compute one token.
        ids, positions: of the tokens, int64, shape ``[num_tokens]``.
        last: index of each sequence's last token among the tokens, shape ``[n]``.
        samples: whether its last token is the last it has, so that the next is sampled from
            it, shape ``[n]``.
        block_table: their pages, shape ``[n, pages]``, as many as the longest context has.
    """

    slots: NDArray[np.int32]
    rows: NDArray[np.int64]
    sequences: NDArray[np.int64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    num_single: int
    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    last: NDArray[np.int64]
    samples: NDArray[np.bool_]
    block_table: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.slots)

    def only(self, index: int) -> StepBatch:
        """The same step for one of its sequences alone."""
        first = int(self.last[index] - self.counts[index] + 1)
        end = int(self.last[index]) + 1
        one = slice(index, index + 1)
        return StepBatch(
            slots=self.slots[one],
            rows=self.rows[one],
            sequences=self.sequences[one],
            starts=self.starts[one],
            counts=self.counts[one],
            num_single=int(self.counts[index] == 1),
            ids=self.ids[first:end],
            positions=self.positions[first:end],
            last=self.counts[one] - 1,
            samples=self.samples[one],
            block_table=self.block_table[one],
        )


def gather(
    rows: Rows,
    slots: NDArray[np.int32],
    row: NDArray[np.int32],
    sequences: NDArray[np.int64],
    starts: NDArray[np.int32],
    counts: NDArray[np.int32],
    num_tokens: NDArray[np.int32],
) -> StepBatch:
    """Build the batch of a step.

    Args:
        rows: the running rows.
        slots: sequences to compute, shape ``[n]``.
        row: row of each, shape ``[n]``.
        sequences: the gateway's number for each, shape ``[n]``.
        starts: tokens computed before, shape ``[n]``.
        counts: tokens to compute, at least 1, shape ``[n]``.
        num_tokens: tokens that each has, shape ``[n]``.
    """
    # Longest first, so that neighbours in the batch have similar contexts to attend to.
    order = np.lexsort((-starts, counts != 1))
    slots, counts_, starts_ = slots[order], counts[order].astype(np.int64), starts[order]
    row_ = row[order].astype(np.int64)
    first = starts_.astype(np.int64)
    num_single = int(np.count_nonzero(counts_ == 1))
    last = np.cumsum(counts_) - 1
    if num_single == len(slots):
        positions = first
        token_rows = row_
    else:
        token_rows = np.repeat(row_, counts_)
        offset = np.arange(len(token_rows)) - np.repeat(last + 1 - counts_, counts_)
        positions = np.repeat(first, counts_) + offset
    num_pages = -(-int((first + counts_).max()) // rows.page_size)
    return StepBatch(
        slots=slots,
        rows=row_,
        sequences=sequences[order],
        starts=first,
        counts=counts_,
        num_single=num_single,
        ids=rows.tokens[token_rows, positions].astype(np.int64),
        positions=positions,
        last=last,
        samples=first + counts_ == num_tokens[order],
        block_table=rows.block_table[row_, :num_pages],
    )
