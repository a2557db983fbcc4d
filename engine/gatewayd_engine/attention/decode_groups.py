"""Grouping of decoding sequences that attend together.

Their contexts are read from dense copies (``dense_contexts``), all rows of a buffer at once, or,
for sequences without a copy, from the pages, in groups of similar length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.dense_buffers import Buffer
from gatewayd_engine.attention.dense_contexts import Contexts, DenseBatch, DensePrefix
from gatewayd_engine.attention.score_biases import Biases
from gatewayd_engine.attention.windows import first_visible
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.state.step_batch import BatchDrafts, StepBatch


@dataclass(frozen=True, slots=True)
class Group:
    """Decoding sequences of the batch that attend together.

    Attributes:
        lines: indices of their tokens in the batch, ``width`` per sequence, the last one repeated
            where a sequence has fewer, shape ``[count * width]``; None for the batch's first tokens
            in order.
        count: number of sequences.
        width: tokens per sequence: 1 or, with drafts, the most that any of them has.
        length: padded context length, without the shared prefix.
        masks: additive mask per window, 0 where a token sees a position and -inf elsewhere; None
            where all positions are visible. Shape ``[count * kv_heads, 1, length]``, with a width
            above 1 ``[count, 1, width, 1, length]``.
        pages: flat block tables, shape ``[count * pages_each]``; unused with a copy.
        copy: buffer of their dense contexts, if they have copies.
        prefix: shared prefix before those contexts, if there is one.
        keys: keys of the copy, by layer, shape ``[count * kv_heads, head_dim, length]``.
        values: values of the copy, by layer, shape ``[count * kv_heads, length, head_dim]``.
        write: index of this step's tokens in the copy, shape
            ``[count * width * num_parts * kv_heads]``.
        bias: added to the scores of the first KV slots, shape ``[layers, count, kv_heads, 1,
            kv_slots]``; None where no sequence has a compacted prefix.
    """

    lines: torch.Tensor | None
    count: int
    width: int
    length: int
    masks: dict[int, torch.Tensor | None]
    pages: torch.Tensor
    copy: Buffer | None
    prefix: DensePrefix | None
    keys: Sequence[torch.Tensor]
    values: Sequence[torch.Tensor]
    write: torch.Tensor
    bias: torch.Tensor | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that attend, including repeated ones."""
        return self.count * self.width


class GroupPlanner:
    """Planner of the groups of each step.

    Args:
        shape: attention shape of the model.
        pool: KV pool.
        max_running: most sequences that decode at once.
        copy_bytes: memory for dense copies of their contexts; 0 for none.

    Attributes:
        biases: score biases of sequences with compacted prefixes.
    """

    def __init__(
        self, shape: AttentionShape, pool: KvPool, max_running: int, copy_bytes: int
    ) -> None:
        self._shape = shape
        self._page_size = pool.page_size
        self._dtype, self._device = pool.dtype, pool.data.device
        self._windows = sorted(set(shape.windows))
        # A window may end inside a prefix: such models read it sequence by sequence.
        self._contexts = Contexts(pool, max_running, copy_bytes, shares=not any(shape.windows))
        self.biases = Biases(pool)
        self._none = torch.empty(0, dtype=torch.int64)

    def compact(
        self,
        sequences: NDArray[np.int64],
        sources: NDArray[np.int64],
        targets: NDArray[np.int64],
    ) -> None:
        """Move accepted tokens within the dense copies; see ``moves``."""
        self._contexts.compact(sequences, sources, targets)

    def discard_copies(self) -> None:
        """Discard all dense copies; see ``Contexts``."""
        self._contexts.discard_copies()

    def plan(self, batch: StepBatch) -> list[Group]:
        """Plan the groups of one step."""
        self.biases.start_step()
        placed, left_out = self._contexts.update(batch)
        groups = [self._plan_dense_batch(batch, copied) for copied in placed]
        # Sequences come longest first; a new group where the context length halves keeps padding
        # below half.
        while len(left_out):
            lengths = batch.starts[left_out] + 1
            count = int(np.count_nonzero(lengths * 2 > lengths[0]))
            groups.append(self._plan_paged(batch, left_out[:count]))
            left_out = left_out[count:]
        return groups

    def _plan_dense_batch(self, batch: StepBatch, copied: DenseBatch) -> Group:
        buffer, prefix, lines = copied.buffer, copied.prefix, copied.lines
        now = batch.starts[lines][:, None]
        if prefix is not None:
            # A copy begins after the shared prefix.
            now = now - prefix.num_tokens
        tokens = self._tokens(batch, lines)
        heads = np.arange(now.size * self._shape.num_kv_heads).reshape(now.size, -1)
        # [n, kv_heads]: index in ``Buffer.rows``, where each head of a row has ``capacity`` tokens.
        at = heads * buffer.capacity + now
        if tokens.shape[1] > 1:
            # Padding repeats the last token of a sequence, which writes the same numbers once more.
            at = at[:, None] + (tokens - tokens[:, :1])[:, :, None]
        # From the keys of a layer to its values.
        part = buffer.num_lines * self._shape.num_kv_heads * buffer.capacity
        parts = [at + i * part for i in range(self._shape.num_parts)]
        write = self._tensor(np.concatenate(parts, -1).ravel())
        length, masks = self._masks(batch, lines, now, buffer.capacity)
        # For all layers at once: a view per layer costs as much as a small matrix product.
        by_part = buffer.by_head[:, :, : heads.size, :length].unbind(1)
        # The last part has the values, also where it is the only one.
        keys, values = by_part[0], by_part[-1]
        return Group(
            lines=self._lines(tokens),
            count=now.size,
            width=tokens.shape[1],
            length=length,
            masks=masks,
            pages=self._none,
            copy=buffer,
            prefix=prefix,
            keys=keys.transpose(2, 3).unbind(),
            values=values.unbind(),
            write=write,
            bias=self.biases.of_lines(batch, lines),
        )

    def _plan_paged(self, batch: StepBatch, lines: NDArray[np.int64]) -> Group:
        now = batch.starts[lines][:, None]
        end = now + batch.counts[lines][:, None]
        num_pages = -(-int(end.max()) // self._page_size)
        table = batch.block_table[lines, :num_pages]
        # Beyond a sequence's own pages its block table has stale entries: its first page is read
        # instead, and masked.
        own = np.arange(num_pages) * self._page_size < end
        table = np.where(own, table, table[:, :1])
        length, masks = self._masks(batch, lines, now, num_pages * self._page_size)
        tokens = self._tokens(batch, lines)
        return Group(
            lines=self._lines(tokens),
            count=now.size,
            width=tokens.shape[1],
            length=length,
            masks=masks,
            # Index of a page's keys in layer 0, in the view of the pool by part.
            pages=self._tensor(table.ravel() * (self._shape.num_layers * self._shape.num_parts)),
            copy=None,
            prefix=None,
            keys=(),
            values=(),
            write=self._none,
            bias=self.biases.of_lines(batch, lines),
        )

    def _masks(
        self, batch: StepBatch, lines: NDArray[np.int64], now: NDArray[np.int64], most: int
    ) -> tuple[int, dict[int, torch.Tensor | None]]:
        """Return the padded context length of sequences at these positions, and their masks."""
        if batch.drafts is not None and (counts := batch.counts[lines]).max() > 1:
            return self._wide_masks(batch.drafts.at(lines), counts, now, most)
        longest = int(now.max()) + 1
        # Contexts of equal length, such as that of a single sequence, need no mask.
        is_even = bool((now == longest - 1).all())
        length = longest if is_even else min(-(-longest // self._page_size) * self._page_size, most)
        at = np.arange(length)
        masks: dict[int, torch.Tensor | None] = {}
        for window in self._windows:
            if is_even and not 0 < window < longest:
                masks[window] = None
                continue
            seen = at <= now
            if window:
                seen &= at >= first_visible(now, window, chunked=self._shape.chunked)
            mask = self._tensor(np.where(seen, np.float32(0), np.float32(-np.inf)))
            mask = mask.to(self._dtype).unsqueeze(1)
            # One row per sequence and KV head, broadcast over the query heads that share it.
            masks[window] = mask.repeat_interleave(self._shape.num_kv_heads, 0)
        return length, masks

    def _wide_masks(
        self, drafts: BatchDrafts, counts: NDArray[np.int64], now: NDArray[np.int64], most: int
    ) -> tuple[int, dict[int, torch.Tensor | None]]:
        """As ``_masks`` with drafts: a token sees the context, its ancestors and itself."""
        width = int(counts.max())
        longest = int((now[:, 0] + counts).max())
        length = min(-(-longest // self._page_size) * self._page_size, most)
        at = np.arange(length)
        offset = np.arange(width)
        # [n, width, length]: every token sees the context before the step.
        seen = np.repeat((at < now)[:, None], width, 1)
        sees, depths = drafts.lineage(width)
        # Padding repeats a sequence's last token, so it gets the mask of that token.
        real = np.minimum(offset, counts[:, None] - 1)
        line = np.arange(len(counts))[:, None]
        sees = sees[line, real]
        among = np.broadcast_to((now + offset)[:, None], sees.shape)
        # Padding of a shorter sequence may lie beyond the longest context.
        inside = among < length
        line_, token, _ = np.nonzero(inside)
        seen[line_, token, among[inside]] = sees[inside]
        masks: dict[int, torch.Tensor | None] = {}
        for window in self._windows:
            visible = seen
            if window:
                # A window counts positions, and drafts of a tree have those of their depth, not of
                # their KV slot.
                where = np.repeat(at[None], len(counts), 0)
                where[np.nonzero(inside[:, 0])[0], among[:, 0][inside[:, 0]]] = (now + depths)[
                    inside[:, 0]
                ]
                position = (now + depths)[line, real]
                first = first_visible(position, window, chunked=self._shape.chunked)
                visible = seen & (where[:, None] >= first[:, :, None])
            mask = self._tensor(np.where(visible, np.float32(0), np.float32(-np.inf)))
            masks[window] = mask.to(self._dtype)[:, None, :, None]
        return length, masks

    @staticmethod
    def _tokens(batch: StepBatch, lines: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens of each sequence, padded with its last one, shape ``[n, width]``."""
        counts = batch.counts[lines]
        width = int(counts.max())
        first = batch.last[lines] - counts + 1
        if width == 1:
            return first[:, None]
        return first[:, None] + np.minimum(np.arange(width), counts[:, None] - 1)

    def _lines(self, tokens: NDArray[np.int64]) -> torch.Tensor | None:
        flat = tokens.ravel()
        return None if bool((flat == np.arange(len(flat))).all()) else self._tensor(flat)

    def _tensor(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
