"""The inputs of one step, gathered from the rows it computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kv.compacted_prefix import CompactedPrefixes
from gatewayd_engine.state.running_batch import RunningBatch


@dataclass(frozen=True, slots=True)
class DraftLines:
    """Guesses that a step computes behind the last tokens of its decoding sequences.

    Attributes:
        counts: how many each line of the batch has, shape ``[n]``.
        tokens: what they are, shape ``[n, width]``.
        parents: which draft comes before each, -1 for the line's last token, shape
            ``[n, width]``; None where each follows the one before.
        probs: what drafts were drawn from, shape ``[drawn, width, vocab]``; None if none was.
        source: which of ``probs`` a line's drafts were drawn from, -1 if they were chosen,
            shape ``[n]``.
    """

    counts: NDArray[np.int64]
    tokens: NDArray[np.int32]
    parents: NDArray[np.int32] | None
    probs: torch.Tensor | None
    source: NDArray[np.int64]

    def at(self, lines: NDArray[np.int64]) -> DraftLines:
        """The drafts of some lines."""
        return DraftLines(
            self.counts[lines],
            self.tokens[lines],
            None if self.parents is None else self.parents[lines],
            self.probs,
            self.source[lines],
        )

    @classmethod
    def chains(cls, num_lines: int, chains: Mapping[int, Sequence[int]]) -> DraftLines:
        """Tokens that follow one another, behind some of the lines."""
        counts = np.zeros(num_lines, np.int64)
        tokens = np.zeros((num_lines, max(map(len, chains.values()))), np.int32)
        for line, chain in chains.items():
            counts[line] = len(chain)
            tokens[line, : len(chain)] = chain
        return cls(counts, tokens, None, None, np.full(num_lines, -1, np.int64))

    @classmethod
    def none(cls, num_lines: int) -> DraftLines:
        """Lines without drafts."""
        nothing = np.zeros((num_lines, 0), np.int32)
        return cls(
            np.zeros(num_lines, np.int64), nothing, None, None, np.full(num_lines, -1, np.int64)
        )

    def joined(self, chains: DraftLines) -> DraftLines:
        """The same with the chains of lines that have nothing here."""
        width = max(self.tokens.shape[1], chains.tokens.shape[1])
        has = chains.counts > 0
        tokens = np.where(has[:, None], _wide(chains.tokens, width), _wide(self.tokens, width))
        parents, probs = self.parents, self.probs
        if parents is not None:
            in_order = np.arange(-1, width - 1, dtype=np.int32)
            parents = np.where(has[:, None], in_order, _wide(parents, width, -1))
        if probs is not None and probs.shape[1] < width:
            probs = torch.nn.functional.pad(probs, (0, 0, 0, width - probs.shape[1]))
        counts = self.counts + chains.counts
        return DraftLines(counts, tokens, parents, probs, self.source)

    def cut(self, most: int) -> DraftLines:
        """At most so many drafts of each line, the first."""
        if self.tokens.shape[1] <= most:
            return self
        return DraftLines(
            np.minimum(self.counts, most),
            self.tokens[:, :most],
            None if self.parents is None else self.parents[:, :most],
            None if self.probs is None else self.probs[:, :most],
            self.source,
        )

    def lineage(self, width: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Which tokens of a line come before which: first its last token, then its drafts.

        Returns:
            Whether token i sees token j, shape ``[n, width, width]``, and how deep each stands,
            0 for the last token, shape ``[n, width]``.
        """
        n = len(self.counts)
        offset = np.arange(width)
        if self.parents is None:
            sees = np.broadcast_to(offset <= offset[:, None], (n, width, width))
            return sees, np.broadcast_to(offset, (n, width))
        sees = np.zeros((n, width, width), np.bool_)
        sees[:, 0, 0] = True
        depths = np.zeros((n, width), np.int64)
        line = np.arange(n)
        for token in range(1, width):
            parent = self.parents[:, token - 1] + 1
            sees[:, token] = sees[line, parent]
            sees[:, token, token] = True
            depths[:, token] = depths[line, parent] + 1
        return sees, depths


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Sequences of one step: first those that decode, longest first, then chunks of prompts.

    A sequence that decodes computes its last token, and drafts behind it if it has any. Tokens
    are flat: all of the first sequence, then all of the second.

    Attributes:
        slots, rows: who they are, shape ``[n]``.
        sequences: the gateway's numbers for them, shape ``[n]``.
        starts: tokens that each had computed before, shape ``[n]``.
        counts: tokens that each computes now, drafts included, shape ``[n]``.
        num_decode: how many sequences compute one token and drafts behind it.
        ids: of the tokens, int64, shape ``[num_tokens]``.
        places: where in its sequence's pages each is kept, if it has no front, int64, shape
            ``[num_tokens]``.
        positions: the same but for drafts of a tree, of which several share a position.
        last: index of each sequence's last token among the tokens, shape ``[n]``.
        samples: whether the last of its tokens that is no draft is the last it has, so that the
            next is sampled from it, shape ``[n]``.
        block_table: their pages, shape ``[n, pages]``, as many as the longest context has; none
            for runners that know them.
        drafts: None if nobody has any.
        unknown: lines whose one token is not known yet: the step before chooses it. None if there
            are none, shape ``[m]``.
        fronts: of its lines; None if nobody has any.
    """

    slots: NDArray[np.int32]
    rows: NDArray[np.int64]
    sequences: NDArray[np.int64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    num_decode: int
    ids: NDArray[np.int64]
    places: NDArray[np.int64]
    positions: NDArray[np.int64]
    last: NDArray[np.int64]
    samples: NDArray[np.bool_]
    block_table: NDArray[np.int64]
    drafts: DraftLines | None
    unknown: NDArray[np.int64] | None = None
    fronts: CompactedPrefixes | None = None

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def settled(self) -> NDArray[np.int64]:
        """Tokens that each sequence computes for good, drafts not counted, shape ``[n]``."""
        return self.counts if self.drafts is None else self.counts - self.drafts.counts

    def only(self, index: int) -> StepBatch:
        """The same step for one of its sequences alone."""
        first = int(self.last[index] - self.counts[index] + 1)
        end = int(self.last[index]) + 1
        one = slice(index, index + 1)
        drafts = self.drafts
        return StepBatch(
            slots=self.slots[one],
            rows=self.rows[one],
            sequences=self.sequences[one],
            starts=self.starts[one],
            counts=self.counts[one],
            num_decode=int(index < self.num_decode),
            ids=self.ids[first:end],
            places=self.places[first:end],
            positions=self.positions[first:end],
            last=self.counts[one] - 1,
            samples=self.samples[one],
            block_table=self.block_table[one],
            drafts=None if drafts is None else drafts.at(np.array([index])),
            unknown=np.zeros(1, np.int64)
            if self.unknown is not None and index in self.unknown
            else None,
            fronts=None if self.fronts is None else CompactedPrefixes.make(self.fronts.of[one]),
        )

    def of(self, lines: NDArray[np.int64]) -> StepBatch:
        """The same step for some of its sequences, in the order of the batch.

        Args:
            lines: which, ascending; without fronts, shape ``[n]``.
        """
        is_taken = np.zeros(len(self), np.bool_)
        is_taken[lines] = True
        tokens = np.repeat(is_taken, self.counts)
        counts, drafts, unknown = self.counts[lines], self.drafts, self.unknown
        if unknown is not None:
            unknown = np.searchsorted(lines, unknown[is_taken[unknown]])
            unknown = unknown if len(unknown) else None
        if drafts is not None:
            drafts = drafts.at(lines) if drafts.counts[lines].any() else None
        return StepBatch(
            slots=self.slots[lines],
            rows=self.rows[lines],
            sequences=self.sequences[lines],
            starts=self.starts[lines],
            counts=counts,
            num_decode=int(np.count_nonzero(lines < self.num_decode)),
            ids=self.ids[tokens],
            places=self.places[tokens],
            positions=self.positions[tokens],
            last=np.cumsum(counts) - 1,
            samples=self.samples[lines],
            block_table=self.block_table[lines],
            drafts=drafts,
            unknown=unknown,
        )

    def in_pool(self) -> StepBatch:
        """The same by places in the pool, for whoever reads and writes there.

        Behind a front they are not those of tokens. A sequence that has got one is another one
        for whoever keeps what it had before.
        """
        if self.fronts is None:
            return self
        shift = self.fronts.shift
        return replace(
            self,
            sequences=np.where(shift > 0, ~self.sequences, self.sequences),
            starts=self.starts - shift,
            places=self.places - np.repeat(shift, self.counts),
        )

    def without_drafts(self) -> StepBatch:
        """The same for a batch of one sequence, with nothing behind its last token."""
        count = int(self.settled[0])
        return replace(
            self,
            counts=self.settled,
            ids=self.ids[:count],
            places=self.places[:count],
            positions=self.positions[:count],
            last=self.settled - 1,
            drafts=None,
        )


def gather(
    rows: RunningBatch,
    slots: NDArray[np.int32],
    row: NDArray[np.int32],
    sequences: NDArray[np.int64],
    starts: NDArray[np.int32],
    counts: NDArray[np.int32],
    num_tokens: NDArray[np.int32],
    drafts: DraftLines | None = None,
    placeholders: NDArray[np.int32] | None = None,
    with_tables: bool = True,
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
        drafts: of those that have any; they are written behind the tokens of their rows.
        placeholders: last tokens of each that only the device knows, 0 or 1; None if there is no
            step on its way, shape ``[n]``.
        with_tables: whether the block tables are copied; else they have no pages.
    """
    # Longest first, so that neighbours in the batch have similar contexts to attend to.
    order = np.lexsort((-starts, counts != 1))
    slots, counts_, starts_ = slots[order], counts[order].astype(np.int64), starts[order]
    row_ = row[order].astype(np.int64)
    first = starts_.astype(np.int64)
    num_decode = int(np.count_nonzero(counts_ == 1))
    samples = first + counts_ == num_tokens[order]
    if drafts is not None:
        drafts = drafts.at(order)
        counts_ = counts_ + drafts.counts
        _write(rows, row_, first + 1, drafts)
    last = np.cumsum(counts_) - 1
    if num_decode == len(slots) and drafts is None:
        places = first
        token_rows = row_
    else:
        token_rows = np.repeat(row_, counts_)
        offset = np.arange(len(token_rows)) - np.repeat(last + 1 - counts_, counts_)
        places = np.repeat(first, counts_) + offset
    num_pages = -(-int((first + counts_).max()) // rows.page_size) if with_tables else 0
    batch = StepBatch(
        slots=slots,
        rows=row_,
        sequences=sequences[order],
        starts=first,
        counts=counts_,
        num_decode=num_decode,
        ids=rows.tokens[token_rows, places].astype(np.int64),
        places=places,
        positions=places,
        last=last,
        samples=samples,
        block_table=rows.block_table[row_, :num_pages],
        drafts=drafts,
        unknown=None if placeholders is None else np.flatnonzero(placeholders[order]),
        fronts=CompactedPrefixes.make([rows.fronts.get(one) for one in row_.tolist()])
        if rows.fronts
        else None,
    )
    if drafts is not None and drafts.parents is not None:
        return replace(batch, positions=_tree_positions(batch, drafts))
    return batch


def _wide(column: NDArray[np.int32], width: int, fill: int = 0) -> NDArray[np.int32]:
    return np.pad(column, ((0, 0), (0, width - column.shape[1])), constant_values=fill)


def _write(
    rows: RunningBatch, row: NDArray[np.int64], at: NDArray[np.int64], drafts: DraftLines
) -> None:
    """Put drafts where the tokens of their rows would go on."""
    line, draft = np.nonzero(np.arange(drafts.tokens.shape[1]) < drafts.counts[:, None])
    rows.tokens[row[line], at[line] + draft] = drafts.tokens[line, draft]


def _tree_positions(batch: StepBatch, drafts: DraftLines) -> NDArray[np.int64]:
    """Drafts of a tree stand as far behind the last token as they are deep."""
    positions = batch.places.copy()
    line, draft = np.nonzero(np.arange(drafts.tokens.shape[1]) < drafts.counts[:, None])
    token = batch.last[line] - drafts.counts[line] + 1 + draft
    _, depths = drafts.lineage(drafts.tokens.shape[1] + 1)
    positions[token] = batch.starts[line] + depths[line, draft + 1]
    return positions
