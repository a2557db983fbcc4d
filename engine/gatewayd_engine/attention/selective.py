"""Attention of which some decoding lines read few places only, as a KV compression says.

What is read is gathered from the pages, in time that depends on how many places there are and
not on the context. Dense copies and prefixes that are kept apart go on as if nothing was: the
next step of the same line may attend to all.
"""

from __future__ import annotations

import numpy as np
import torch

from gatewayd_engine.attention.base import AttentionShape
from gatewayd_engine.attention.groups import Group
from gatewayd_engine.attention.reference import ReferenceAttention
from gatewayd_engine.attention.selection import Asked, Selection
from gatewayd_engine.batch import StepBatch
from gatewayd_engine.kv.pool import KvPool


class SelectiveAttention(ReferenceAttention):
    """Attends as ``ReferenceAttention`` does, but for those of whom a strategy says otherwise.

    Args:
        shape: the model's attention.
        pool: where keys and values are.
        max_running: most sequences that decode at once.
        copy_bytes: memory for dense copies of their contexts; 0 for none.
        selection: asks the strategy, if there is one.
        is_steady: see ``ReferenceAttention``.
    """

    def __init__(
        self,
        shape: AttentionShape,
        pool: KvPool,
        max_running: int,
        copy_bytes: int,
        selection: Selection,
        *,
        is_steady: bool = False,
    ) -> None:
        super().__init__(shape, pool, max_running, copy_bytes, is_steady=is_steady)
        self._selection = selection
        self._asked: Asked | None = None
        self._by_record = pool.data.flatten(0, 4)
        # Places in the pool, in records: from a layer to the next, from keys to values.
        self._half = pool.page_size * shape.num_kv_heads
        self._heads = torch.arange(shape.num_kv_heads)[None, :, None]
        self._pages = torch.empty(0, dtype=torch.int64)
        self._tokens = torch.empty(0, dtype=torch.int64)
        self._whole: list[bool] = []
        self._seen: list[tuple[np.ndarray, np.ndarray]] = []

    def plan(self, batch: StepBatch) -> None:
        """Prepare for the layers of one step."""
        super().plan(batch)
        asked = self._asked = self._selection.begin(batch)
        if asked is None:
            return
        lines = asked.lines[asked.sparse]
        self._tokens = torch.from_numpy(asked.tokens[asked.sparse])
        self._pages = torch.from_numpy(np.ascontiguousarray(batch.block_table[lines]))
        is_sparse = np.zeros(len(batch.ids), np.bool_)
        is_sparse[asked.tokens[asked.sparse]] = True
        # Which of a group's lines were asked about; none where others have drafts.
        at = np.full(len(batch.ids), -1)
        at[asked.tokens] = np.arange(len(asked.tokens))
        self._whole, self._seen = [], []
        for group in self._groups:
            tokens = np.arange(group.count) if group.lines is None else group.lines.numpy()
            is_plain = group.width == 1
            self._whole.append(is_plain and bool(is_sparse[tokens].all()))
            which = at[tokens] if is_plain else np.zeros(0, np.int64)
            every = np.flatnonzero(which >= 0)
            dense = np.flatnonzero((which >= 0) & ~is_sparse[tokens]) if is_plain else every
            self._seen.append((every, dense))

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """See ``Attend``."""
        asked = self._asked
        if asked is None or self._shape.windows[layer]:
            return super().__call__(layer, query, key_value)
        new = self._written(layer, len(query), key_value)
        places = self._selection.select(layer, asked)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        flat = out.view(len(query), -1)
        for i, group in enumerate(self._groups):
            every, dense = self._seen[i]
            lines = slice(group.num_tokens) if group.lines is None else group.lines
            if places is not None and self._whole[i]:
                self._append(group, layer, new[lines])
                continue
            weights: list[torch.Tensor] = []
            flat[lines] = self._attend_group(group, layer, query[lines], new[lines], weights)
            seen = every if places is None else dense
            if len(seen):
                self._show(layer, asked, group, seen, weights[0])
        if places is not None:
            flat[self._tokens] = self._attend_places(layer, asked, query[self._tokens], places)
        self._attend_chunks(layer, query, out)
        return flat

    def _show(
        self, layer: int, asked: Asked, group: Group, seen: np.ndarray, weights: torch.Tensor
    ) -> None:
        """Show what some lines of a group have attended to; weights ``[count, heads, length]``."""
        tokens = np.arange(group.count) if group.lines is None else group.lines.numpy()
        which = np.searchsorted(asked.tokens, tokens[seen])
        lengths = asked.lengths[which]
        if len(seen) < group.count:
            weights = weights[torch.from_numpy(seen)]
        longest = int(lengths.max())
        self._selection.show(layer, asked.rows[which], lengths, weights[..., :longest], None)

    def _attend_places(
        self, layer: int, asked: Asked, query: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        """Attend to some places of each head alone.

        Args:
            layer: which.
            asked: the lines; those that attend to few are meant.
            query: theirs, shape ``[m, num_heads, head_dim]``.
            places: shape ``[m, kv_heads, k]``, -1 for none.

        Returns:
            Shape ``[m, num_heads * head_dim]``.
        """
        count, kv_heads, k = places.shape
        there = places.clamp_min(0)
        page = self._pages.gather(1, (there // self._page_size).flatten(1)).view_as(there)
        page = (page * self._shape.num_layers + layer) * (2 * self._half)
        record = page + there % self._page_size * kv_heads + self._heads
        keys, values = self._records(record), self._records(record + self._half)
        mask = None
        missing = places < 0
        if bool(missing.any()):
            mask = torch.zeros(missing.shape, dtype=self._dtype)
            mask = mask.masked_fill_(missing, -torch.inf).view(count * kv_heads, 1, k)
        q = query.reshape(count * kv_heads, self._per_group, -1)
        seen: list[torch.Tensor] = []
        answer = self._dense.lines(q, keys.transpose(1, 2), values, mask, None, seen)
        rows, lengths = asked.rows[asked.sparse], asked.lengths[asked.sparse]
        self._selection.show(layer, rows, lengths, seen[0], places)
        return answer.view(count, -1)

    def _records(self, index: torch.Tensor) -> torch.Tensor:
        """Numbers of records ``[m, kv_heads, k]``; shape ``[m * kv_heads, k, head_dim]``."""
        found = self._by_record.index_select(0, index.flatten())
        if self._codec is not None:
            found = self._codec.decode(found)
        return found.view(index.shape[0] * index.shape[1], index.shape[2], -1)
