"""Attention of which some decoding lines read few places only, as a KV compression says.

What is read is gathered from the pages, in time that depends on how many places there are and
not on the context. Dense copies and prefixes that are kept apart go on as if nothing was: the
next step of the same line may attend to all.
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


class _Looked(NamedTuple):
    """Lines of a group whose attention is shown.

    Attributes:
        lines: which of the group, shape ``[n]``; None for all.
        rows: theirs, shape ``[n]``.
        lengths: tokens that each has, shape ``[n]``.
        longest: of those.
    """

    lines: torch.Tensor | None
    rows: NDArray[np.int64]
    lengths: NDArray[np.int64]
    longest: int


class _Read(NamedTuple):
    """What is read in a layer by lines that attend to few places.

    Attributes:
        records: in the pool, of keys and then of values, shape ``[2 * m * kv_heads * k]``.
        places: shape ``[m, kv_heads, k]``.
        mask: 0, and -inf where there is no place, shape ``[m * kv_heads, 1, k]``; None without.
    """

    records: torch.Tensor
    places: torch.Tensor
    mask: torch.Tensor | None


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
        self._asked: SelectionRequest | None = None
        self._by_record = pool.data.flatten(0, 4)
        # Where records are: those of a page's half, and in a page those of layers, keys, values,
        # and heads, shape [layers, 2, 1, kv_heads, 1].
        self._half = pool.page_size * shape.num_kv_heads
        halves = np.arange(2 * shape.num_layers).reshape(-1, 2, 1, 1, 1) * self._half
        self._offsets = torch.from_numpy(halves + np.arange(shape.num_kv_heads)[:, None])
        self._offsets_of: tuple[list[int], torch.Tensor] = ([], self._offsets)
        self._asked_layers = [i for i, window in enumerate(shape.windows) if not window]
        self._reads: dict[int, _Read] = {}
        self._tokens = torch.empty(0, dtype=torch.int64)
        self._is_all = False
        self._whole: list[bool] = []
        # By group: of lines that were asked about, and of those that attend to all.
        self._every: list[_Looked | None] = []
        self._dense_lines: list[_Looked | None] = []

    def plan(self, batch: StepBatch) -> None:
        """Prepare for the layers of one step."""
        super().plan(batch)
        asked = self._asked = self._selection.begin(batch)
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
        # Which of a group's lines were asked about; those that have drafts were not.
        at = np.full(len(batch.ids), -1)
        at[asked.tokens] = np.arange(len(asked.tokens))
        self._whole, self._every, self._dense_lines = [], [], []
        for group in self._groups:
            every = np.arange(group.num_tokens) if group.lines is None else group.lines.numpy()
            theirs = every[:: group.width]
            which = at[theirs]
            is_few = is_sparse[theirs]
            self._whole.append(bool(is_few.all()))
            self._every.append(_looked(asked, which, which >= 0))
            self._dense_lines.append(
                None if self._whole[-1] else _looked(asked, which, (which >= 0) & ~is_few)
            )

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """See ``Attend``."""
        asked = self._asked
        if asked is None or self._shape.windows[layer]:
            return super().__call__(layer, query, key_value)
        new = self._written(layer, len(query), key_value)
        read = self._reads.get(layer) if self._selection.is_on else None
        if read is not None and self._is_all:
            for group in self._groups:
                lines = slice(group.num_tokens) if group.lines is None else group.lines
                self._append(group, layer, new[lines])
            return self._attend_places(layer, asked, query, read)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        flat = out.view(len(query), -1)
        looked = self._every if read is None else self._dense_lines
        for i, group in enumerate(self._groups):
            lines = slice(group.num_tokens) if group.lines is None else group.lines
            if read is not None and self._whole[i]:
                self._append(group, layer, new[lines])
                continue
            weights: list[torch.Tensor] = []
            flat[lines] = self._attend_group(group, layer, query[lines], new[lines], weights)
            self._show(layer, looked[i], weights[0])
        if read is not None:
            flat[self._tokens] = self._attend_places(layer, asked, query[self._tokens], read)
        self._attend_chunks(layer, query, out)
        return flat

    def _show(self, layer: int, looked: _Looked | None, weights: torch.Tensor) -> None:
        """Show what some lines of a group have attended to; weights ``[count, heads, length]``."""
        if looked is None:
            return
        if looked.lines is not None:
            weights = weights[looked.lines]
        weights = weights[..., : looked.longest]
        self._selection.show(layer, looked.rows, looked.lengths, weights, None)

    def _plan_reads(self, selected: Selected, table: NDArray[np.generic]) -> dict[int, _Read]:
        """Where what is attended to lies in the pool, for all layers at once.

        Args:
            selected: places.
            table: pages of the lines, shape ``[m, pages]``.
        """
        places = selected.places
        layers, count, kv_heads, k = places.shape
        there = places if selected.is_full else places.clamp_min(0)
        # A record is where its page begins, and so many heads on as there are places in the page.
        first = table.astype(np.int64) * (2 * self._shape.num_layers) - np.arange(table.shape[1])
        by_page = torch.from_numpy(first * self._half).expand(layers, -1, -1)
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
        """Attend to some places of each head alone.

        Args:
            layer: which.
            asked: the lines; those that attend to few are meant.
            query: theirs, shape ``[m, num_heads, head_dim]``.
            read: what they attend to.

        Returns:
            Shape ``[m, num_heads * head_dim]``.
        """
        count, kv_heads, k = read.places.shape
        found = self._by_record.index_select(0, read.records)
        if self._codec is not None:
            found = self._codec.decode(found)
        keys, values = found.view(2, count * kv_heads, k, -1).unbind()
        q = query.reshape(count * kv_heads, self._per_group, -1)
        seen: list[torch.Tensor] = []
        answer = self._dense.lines(q, keys.transpose(1, 2), values, read.mask, None, seen)
        self._selection.show(layer, asked.sparse_rows, asked.sparse_lengths, seen[0], read.places)
        return answer.view(count, -1)


def _looked(
    asked: SelectionRequest, which: NDArray[np.int64], is_one: NDArray[np.bool_]
) -> _Looked | None:
    """Those lines of a group that are among the asked; None for none of them."""
    if not is_one.any():
        return None
    lines = None if is_one.all() else torch.from_numpy(np.flatnonzero(is_one))
    which = which[is_one]
    lengths = asked.lengths[which]
    return _Looked(lines, asked.rows[which], lengths, int(lengths.max()))
