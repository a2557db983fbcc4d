"""Input batch of one step, gathered from the rows it computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kv.compacted_prefix import CompactedPrefixes
from gatewayd_engine.state.running_batch import RunningBatch


@dataclass(frozen=True, slots=True)
class BatchDrafts:
    """Draft tokens verified in a step, after the last tokens of its decoding sequences.

    Attributes:
        counts: draft tokens per batch entry, shape ``[n]``.
        tokens: draft token ids, shape ``[n, width]``.
        parents: index of each draft's parent draft, -1 for the entry's last token, shape
            ``[n, width]``; None where each draft follows the previous one.
        probs: draft distributions, shape ``[drawn, width, vocab]``; None if no draft was sampled.
        source: index into ``probs`` of an entry's drafts, -1 if they were not sampled, shape
            ``[n]``.
    """

    counts: NDArray[np.int64]
    tokens: NDArray[np.int32]
    parents: NDArray[np.int32] | None
    probs: torch.Tensor | None
    source: NDArray[np.int64]

    def at(self, entries: NDArray[np.int64]) -> BatchDrafts:
        """Return the drafts of some batch entries."""
        return BatchDrafts(
            self.counts[entries],
            self.tokens[entries],
            None if self.parents is None else self.parents[entries],
            # Not gathered, because it is large and `source` still refers to all of it.
            self.probs,
            self.source[entries],
        )

    @classmethod
    def chains(cls, num_entries: int, chains: Mapping[int, Sequence[int]]) -> BatchDrafts:
        """Create linear drafts for some batch entries."""
        counts = np.zeros(num_entries, np.int64)
        tokens = np.zeros((num_entries, max(map(len, chains.values()))), np.int32)
        for entry, chain in chains.items():
            counts[entry] = len(chain)
            tokens[entry, : len(chain)] = chain
        return cls(counts, tokens, None, None, np.full(num_entries, -1, np.int64))

    @classmethod
    def none(cls, num_entries: int) -> BatchDrafts:
        """Create a batch without drafts."""
        nothing = np.zeros((num_entries, 0), np.int32)
        return cls(
            np.zeros(num_entries, np.int64), nothing, None, None, np.full(num_entries, -1, np.int64)
        )

    def joined(self, chains: BatchDrafts) -> BatchDrafts:
        """Add linear drafts for entries that have no drafts here."""
        width = max(self.tokens.shape[1], chains.tokens.shape[1])
        has = chains.counts > 0
        tokens = np.where(has[:, None], _wide(chains.tokens, width), _wide(self.tokens, width))
        parents, probs = self.parents, self.probs
        if parents is not None:
            # A chain as a tree: each draft's parent is the one before.
            in_order = np.arange(-1, width - 1, dtype=np.int32)
            parents = np.where(has[:, None], in_order, _wide(parents, width, -1))
        if probs is not None and probs.shape[1] < width:
            probs = torch.nn.functional.pad(probs, (0, 0, 0, width - probs.shape[1]))
        counts = self.counts + chains.counts
        return BatchDrafts(counts, tokens, parents, probs, self.source)

    def cut(self, most: int) -> BatchDrafts:
        """Return the first ``most`` drafts of each entry."""
        if self.tokens.shape[1] <= most:
            return self
        return BatchDrafts(
            np.minimum(self.counts, most),
            self.tokens[:, :most],
            None if self.parents is None else self.parents[:, :most],
            None if self.probs is None else self.probs[:, :most],
            self.source,
        )

    def lineage(self, width: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return the draft trees as ancestor masks: token 0 is the last token, then the drafts.

        Returns:
            Whether token i attends to token j, shape ``[n, width, width]``, and the depth of each
            token, 0 for the last token, shape ``[n, width]``.
        """
        n = len(self.counts)
        offset = np.arange(width)
        if self.parents is None:
            sees = np.broadcast_to(offset <= offset[:, None], (n, width, width))
            return sees, np.broadcast_to(offset, (n, width))
        sees = np.zeros((n, width, width), np.bool_)
        sees[:, 0, 0] = True
        depths = np.zeros((n, width), np.int64)
        entry = np.arange(n)
        for token in range(1, width):
            # Each token attends to what its parent attends to, and to itself; parents come first.
            parent = self.parents[:, token - 1] + 1
            sees[:, token] = sees[entry, parent]
            sees[:, token, token] = True
            depths[:, token] = depths[entry, parent] + 1
        return sees, depths


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Sequences of one step: first decoding ones, longest first, then prefill chunks.

    A decoding sequence computes its last token, and draft tokens after it if it has any. Tokens
    are flat: all of the first sequence, then all of the second.

    Attributes:
        slots, rows: queue slot and batch row of each sequence, shape ``[n]``.
        sequences: the gateway's sequence ids, shape ``[n]``.
        starts: tokens computed before, shape ``[n]``.
        counts: tokens to compute now, drafts included, shape ``[n]``.
        num_decode: number of sequences that compute one token and drafts after it.
        ids: token ids, int64, shape ``[num_tokens]``.
        cache_positions: index of each token within its sequence's pages, if the sequence has no
            compacted prefix, int64, shape ``[num_tokens]``.
        positions: positions of the tokens in their sequences; they differ from ``cache_positions``
            only for draft trees, of which several tokens share a position.
        last: index of each sequence's last token among the tokens, shape ``[n]``.
        samples: whether the last token that is no draft completes the sequence's tokens, so that
            the next one is sampled, shape ``[n]``.
        block_table: pages, shape ``[n, pages]``, wide enough for the longest context; empty for
            runners that keep their own.
        drafts: draft tokens; None if no sequence has any.
        unknown: batch entries whose single token is still a placeholder, sampled by the in-flight
            step; None if there are none, shape ``[m]``.
        fronts: compacted prefixes of the entries; None if no sequence has one.
    """

    slots: NDArray[np.int32]
    rows: NDArray[np.int64]
    sequences: NDArray[np.int64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    num_decode: int
    ids: NDArray[np.int64]
    cache_positions: NDArray[np.int64]
    positions: NDArray[np.int64]
    last: NDArray[np.int64]
    samples: NDArray[np.bool_]
    block_table: NDArray[np.int64]
    drafts: BatchDrafts | None
    unknown: NDArray[np.int64] | None = None
    fronts: CompactedPrefixes | None = None

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def settled(self) -> NDArray[np.int64]:
        """Tokens computed by each sequence, drafts not counted, shape ``[n]``."""
        return self.counts if self.drafts is None else self.counts - self.drafts.counts

    def sampled_positions(self, lines: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of the tokens that some sequences get, which key their numbers.

        With their seeds: a sequence draws the same number in every batch.
        """
        positions: NDArray[np.int64] = (self.starts + self.counts)[lines]
        return positions

    def only(self, index: int) -> StepBatch:
        """Return a batch of one of the sequences."""
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
            cache_positions=self.cache_positions[first:end],
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

    def of(self, entries: NDArray[np.int64]) -> StepBatch:
        """Return a batch of some of the sequences, in the order of this one.

        Args:
            entries: their batch entries, ascending, none with a compacted prefix, shape ``[n]``.
        """
        is_taken = np.zeros(len(self), np.bool_)
        is_taken[entries] = True
        tokens = np.repeat(is_taken, self.counts)
        counts, drafts, unknown = self.counts[entries], self.drafts, self.unknown
        if unknown is not None:
            unknown = np.searchsorted(entries, unknown[is_taken[unknown]])
            unknown = unknown if len(unknown) else None
        if drafts is not None:
            drafts = drafts.at(entries) if drafts.counts[entries].any() else None
        return StepBatch(
            slots=self.slots[entries],
            rows=self.rows[entries],
            sequences=self.sequences[entries],
            starts=self.starts[entries],
            counts=counts,
            num_decode=int(np.count_nonzero(entries < self.num_decode)),
            ids=self.ids[tokens],
            cache_positions=self.cache_positions[tokens],
            positions=self.positions[tokens],
            last=np.cumsum(counts) - 1,
            samples=self.samples[entries],
            block_table=self.block_table[entries],
            drafts=drafts,
            unknown=unknown,
        )

    def in_pool(self) -> StepBatch:
        """Return the batch with positions in the pool instead of those in the sequences.

        They differ after a compacted prefix. Sequence ids change with it, so that state cached by
        id from before the compaction is not reused.
        """
        if self.fronts is None:
            return self
        shift = self.fronts.shift
        return replace(
            self,
            # The complement of an id is negative, and so no other sequence's.
            sequences=np.where(shift > 0, ~self.sequences, self.sequences),
            starts=self.starts - shift,
            cache_positions=self.cache_positions - np.repeat(shift, self.counts),
        )

    def without_drafts(self) -> StepBatch:
        """Return a batch of one sequence without its drafts."""
        count = int(self.settled[0])
        return replace(
            self,
            counts=self.settled,
            ids=self.ids[:count],
            cache_positions=self.cache_positions[:count],
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
    drafts: BatchDrafts | None = None,
    placeholders: NDArray[np.int32] | None = None,
    with_tables: bool = True,
) -> StepBatch:
    """Build the batch of a step.

    Args:
        rows: the running batch.
        slots: sequences to compute, shape ``[n]``.
        row: batch row of each, shape ``[n]``.
        sequences: the gateway's sequence ids, shape ``[n]``.
        starts: tokens computed before, shape ``[n]``.
        counts: tokens to compute, at least 1, shape ``[n]``.
        num_tokens: length of each sequence, shape ``[n]``.
        drafts: draft tokens; they are written after the tokens of their rows.
        placeholders: number of last tokens that only the device knows, 0 or 1; None if there is no
            in-flight step, shape ``[n]``.
        with_tables: whether to copy the block tables; else they have no columns.
    """
    n = len(slots)
    is_decode = int(counts.sum()) == n
    # Longest first, so that neighbours in the batch have similar contexts to attend to. Often they
    # are in this order already.
    if n > 1 and not (is_decode and bool((starts[1:] <= starts[:-1]).all())):
        order = np.lexsort((-starts, counts != 1))
        slots, row, sequences = slots[order], row[order], sequences[order]
        starts, counts, num_tokens = starts[order], counts[order], num_tokens[order]
        drafts = None if drafts is None else drafts.at(order)
        placeholders = None if placeholders is None else placeholders[order]
    counts_, row_, first = counts.astype(np.int64), row.astype(np.int64), starts.astype(np.int64)
    num_decode = n if is_decode else int(np.count_nonzero(counts_ == 1))
    # Before drafts are added, which are not tokens of the sequence yet.
    samples = first + counts_ == num_tokens
    if drafts is not None:
        counts_ = counts_ + drafts.counts
        _write(rows, row_, first + 1, drafts)
    # One token per sequence: nothing has to be repeated.
    if is_decode and drafts is None:
        last, cache_positions, token_rows = np.arange(n), first, row_
        longest = int(first[0]) + 1
    else:
        last, longest = np.cumsum(counts_) - 1, int((first + counts_).max())
        token_rows = np.repeat(row_, counts_)
        offset = np.arange(len(token_rows)) - np.repeat(last + 1 - counts_, counts_)
        cache_positions = np.repeat(first, counts_) + offset
    num_pages = -(-longest // rows.page_size) if with_tables else 0
    batch = StepBatch(
        slots=slots,
        rows=row_,
        sequences=sequences,
        starts=first,
        counts=counts_,
        num_decode=num_decode,
        # For placeholders these are arbitrary; the runner replaces them, see `unknown`.
        ids=rows.tokens[token_rows, cache_positions].astype(np.int64),
        cache_positions=cache_positions,
        positions=cache_positions,
        last=last,
        samples=samples,
        # Indexing with an array copies: the rows may change while the step is in flight.
        block_table=rows.block_table[row_, :num_pages],
        drafts=drafts,
        unknown=None if placeholders is None else placeholders.nonzero()[0],
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
    rows: RunningBatch, row: NDArray[np.int64], at: NDArray[np.int64], drafts: BatchDrafts
) -> None:
    """Write draft tokens after the committed tokens of their rows."""
    entry, draft = np.nonzero(np.arange(drafts.tokens.shape[1]) < drafts.counts[:, None])
    rows.tokens[row[entry], at[entry] + draft] = drafts.tokens[entry, draft]


def _tree_positions(batch: StepBatch, drafts: BatchDrafts) -> NDArray[np.int64]:
    """Return positions where drafts of a tree follow the last token by their depth."""
    positions = batch.cache_positions.copy()
    entry, draft = np.nonzero(np.arange(drafts.tokens.shape[1]) < drafts.counts[:, None])
    # ``last`` is the last draft of an entry, so its drafts are the last ``counts`` tokens.
    token = batch.last[entry] - drafts.counts[entry] + 1 + draft
    _, depths = drafts.lineage(drafts.tokens.shape[1] + 1)
    positions[token] = batch.starts[entry] + depths[entry, draft + 1]
    return positions
