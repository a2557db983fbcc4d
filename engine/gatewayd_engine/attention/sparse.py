"""Sparse attention: some decoding sequences read only KV slots selected by a KV compression.

The selected slots are gathered from the pages, in time that depends on their number and not on the
context length. Dense copies and shared prefixes are maintained as usual: the next step of the same
sequence may attend to its whole context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.kv_selection import Selected, Selection, SelectionRequest
from gatewayd_engine.attention.reference import ReferenceAttention
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.state.step_batch import StepBatch


class _Observed(NamedTuple):
    """Sequences of a group whose attention weights are reported to the compression.

    Attributes:
        lines: their indices in the group, shape ``[n]``; None for all.
        rows: their batch rows, shape ``[n]``.
        lengths: their context lengths, shape ``[n]``.
        longest: the largest of those.
    """

    lines: torch.Tensor | None
    rows: NDArray[np.int64]
    lengths: NDArray[np.int64]
    longest: int


class _Read(NamedTuple):
    """KV slots that sequences with sparse attention read in a layer.

    Attributes:
        records: indices in the pool, of keys and then of values, shape
            ``[num_parts * m * kv_heads * k]``.
        places: selected KV slots, shape ``[m, kv_heads, k]``.
        mask: 0, and -inf for padding, shape ``[m * kv_heads, 1, k]``; None without padding.
    """

    records: torch.Tensor
    places: torch.Tensor
    mask: torch.Tensor | None


class SelectiveAttention(ReferenceAttention):
    """``ReferenceAttention`` with sparse attention where a KV compression selects KV slots.

    Args:
        shape: attention shape of the model.
        pool: KV pool.
        max_running: most sequences that decode at once.
        copy_bytes: memory for dense copies of their contexts; 0 for none.
        selection: queries the compression strategy, if there is one.
        is_steady, sinks: see ``ReferenceAttention``.
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
        sinks: Sequence[torch.Tensor] | None = None,
    ) -> None:
        super().__init__(shape, pool, max_running, copy_bytes, is_steady=is_steady, sinks=sinks)
        self._selection = selection
        self._asked: SelectionRequest | None = None
        self._by_record = pool.data.flatten(0, 4)
        # Record offsets within a page by layer, keys or values, and head, shape
        # [layers, num_parts, 1, kv_heads, 1].
        self._part = pool.page_size * shape.num_kv_heads
        parts = np.arange(shape.num_parts * shape.num_layers) * self._part
        parts = parts.reshape(-1, shape.num_parts, 1, 1, 1)
        self._offsets = torch.from_numpy(parts + np.arange(shape.num_kv_heads)[:, None])
        self._offsets_of: tuple[list[int], torch.Tensor] = ([], self._offsets)
        self._asked_layers = [i for i, window in enumerate(shape.windows) if not window]
        self._reads: dict[int, _Read] = {}
        self._tokens = torch.empty(0, dtype=torch.int64)
        self._is_all = False
        self._whole: list[bool] = []
        # By group: all sequences of the request, and those of them with dense attention.
        self._every: list[_Observed | None] = []
        self._dense_lines: list[_Observed | None] = []

    def plan(self, batch: StepBatch) -> None:
        """Plan the attention of one step; see ``AttentionBackend``."""
        super().plan(batch)
        asked = self._asked = self._selection.start_step(batch)
        self._reads = {}
        if asked is None:
            return
        selected = self._selection.select(self._asked_layers, asked)
        if selected is not None:
            self._reads = self._plan_reads(selected, batch.block_table[asked.lines[asked.sparse]])
        tokens = asked.tokens[asked.sparse]
        self._tokens = torch.from_numpy(tokens)
        self._is_all = bool(np.array_equal(tokens, np.arange(len(batch.ids))))
        is_sparse = np.zeros(len(batch.ids), np.bool_)
        is_sparse[tokens] = True
        # Index in the request of each token; sequences with drafts are not part of it.
        at = np.full(len(batch.ids), -1)
        at[asked.tokens] = np.arange(len(asked.tokens))
        self._whole, self._every, self._dense_lines = [], [], []
        for group in self._groups:
            every = np.arange(group.num_tokens) if group.lines is None else group.lines.numpy()
            theirs = every[:: group.width]
            which = at[theirs]
            is_few = is_sparse[theirs]
            self._whole.append(bool(is_few.all()))
            self._every.append(_observed(asked, which, which >= 0))
            self._dense_lines.append(
                None if self._whole[-1] else _observed(asked, which, (which >= 0) & ~is_few)
            )

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """See ``Attend``."""
        asked = self._asked
        if asked is None or self._shape.windows[layer]:
            return super().__call__(layer, query, key_value)
        new = self._written(layer, len(query), key_value)
        read = self._reads.get(layer) if self._selection.is_on else None
        # Every token of the step is sparse: dense copies are updated but not read.
        if read is not None and self._is_all:
            for group in self._groups:
                lines = slice(group.num_tokens) if group.lines is None else group.lines
                self._append(group, layer, new[lines])
            return self._attend_places(layer, asked, query, read)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        flat = out.view(len(query), -1)
        observed = self._every if read is None else self._dense_lines
        for i, group in enumerate(self._groups):
            lines = slice(group.num_tokens) if group.lines is None else group.lines
            if read is not None and self._whole[i]:
                # All sequences of the group are sparse: only its copies are updated.
                self._append(group, layer, new[lines])
                continue
            weights: list[torch.Tensor] = []
            # A group with any dense sequence attends as a whole; sparse results replace theirs
            # below.
            flat[lines] = self._attend_group(group, layer, query[lines], new[lines], weights)
            self._show(layer, observed[i], weights[0])
        if read is not None:
            flat[self._tokens] = self._attend_places(layer, asked, query[self._tokens], read)
        self._attend_chunks(layer, query, out)
        return flat

    def _show(self, layer: int, observed: _Observed | None, weights: torch.Tensor) -> None:
        """Report attention weights ``[count, heads, length]`` of some sequences of a group."""
        if observed is None:
            return
        if observed.lines is not None:
            weights = weights[observed.lines]
        weights = weights[..., : observed.longest]
        self._selection.show(layer, observed.rows, observed.lengths, weights, None)

    def _plan_reads(self, selected: Selected, table: NDArray[np.generic]) -> dict[int, _Read]:
        """Translate selected KV slots to pool indices, for all layers at once.

        Args:
            selected: selected KV slots.
            table: pages of the sequences, shape ``[m, pages]``.
        """
        places = selected.places
        layers, count, kv_heads, k = places.shape
        # Padding reads KV slot 0, under a mask.
        there = places if selected.is_full else places.clamp_min(0)
        # Index of a record: the start of its page plus its offset in the page times the KV heads.
        first = table.astype(np.int64) * (self._parts * self._shape.num_layers) - np.arange(
            table.shape[1]
        )
        # Less the page's index in the sequence, so that a position can be added instead of an
        # offset.
        by_page = torch.from_numpy(first * self._part).expand(layers, -1, -1)
        begin = by_page.gather(2, (there // self._page_size).flatten(2))
        record = begin.view(layers, 1, count, kv_heads, k).add_(there[:, None], alpha=kv_heads)
        if self._offsets_of[0] != selected.layers:
            self._offsets_of = selected.layers, self._offsets[selected.layers]
        records = (record + self._offsets_of[1]).flatten(1).unbind()
        masks: Sequence[torch.Tensor | None] = [None] * layers
        if not selected.is_full:
            mask = torch.zeros(places.shape, dtype=self._dtype)
            mask = mask.masked_fill_(places < 0, -torch.inf)
            masks = mask.view(layers, count * kv_heads, 1, k).unbind()
        each = zip(records, places.unbind(), masks, strict=True)
        return {layer: _Read(*read) for layer, read in zip(selected.layers, each, strict=True)}

    def _attend_places(
        self, layer: int, asked: SelectionRequest, query: torch.Tensor, read: _Read
    ) -> torch.Tensor:
        """Attend to the selected KV slots of each head.

        Args:
            layer: layer index.
            asked: request of the step, of which the sparse sequences attend.
            query: their queries, shape ``[m, num_heads, head_dim]``.
            read: KV slots to attend to.

        Returns:
            Shape ``[m, num_heads * head_dim]``.
        """
        count, kv_heads, k = read.places.shape
        found = self._by_record.index_select(0, read.records)
        if self._codec is not None:
            found = self._codec.decode(found)
        by_part = found.view(self._parts, count * kv_heads, k, -1).unbind()
        # The last part has the values, also where it is the only one.
        keys, values = by_part[0], by_part[-1]
        q = query.reshape(count * kv_heads, self._per_group, -1)
        seen: list[torch.Tensor] = []
        answer = self._dense.lines(q, keys.transpose(1, 2), values, read.mask, None, seen)
        self._selection.show(layer, asked.sparse_rows, asked.sparse_lengths, seen[0], read.places)
        return answer.view(count, -1)


def _observed(
    asked: SelectionRequest, which: NDArray[np.int64], is_one: NDArray[np.bool_]
) -> _Observed | None:
    """Return the sequences of a group that are part of the request; None if there are none."""
    if not is_one.any():
        return None
    lines = None if is_one.all() else torch.from_numpy(np.flatnonzero(is_one))
    which = which[is_one]
    lengths = asked.lengths[which]
    return _Observed(lines, asked.rows[which], lengths, int(lengths.max()))
