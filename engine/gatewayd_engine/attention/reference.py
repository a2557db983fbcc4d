"""Attention in plain torch: CPU steps that run layer by layer, and the reference of all backends.

Decoding sequences are attended in a few groups (``decode_groups``) instead of one by one, padded
to the longest context and the most drafts of the group, with a mask over the padding. Prefill
chunks are attended one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.batch_invariant import BatchInvariantAttention
from gatewayd_engine.attention.decode_groups import Group, GroupPlanner
from gatewayd_engine.attention.dense import DenseAttention, SharedKeys, causal
from gatewayd_engine.attention.score_biases import biased
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import Tokens, moves


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Attention plan of a prefill chunk.

    Attributes:
        first, end: range of the chunk's tokens in the batch.
        pages: block table, shape ``[pages]``.
        length: context length after this step.
        masks: per window, shape ``[end - first, length]``; None where plain causal attention is
            equivalent.
        bias: added to the scores of the first KV slots, shape
            ``[layers, 1, kv_heads, 1, kv_slots]``; None without a compacted prefix.
    """

    first: int
    end: int
    pages: torch.Tensor
    length: int
    masks: dict[int, torch.Tensor | None]
    bias: torch.Tensor | None


class ReferenceAttention:
    """Attention over the KV pool: ``plan`` once per step, then one call per layer.

    Args:
        shape: attention shape of the model.
        pool: KV pool.
        max_running: most sequences that decode at once.
        copy_bytes: memory for dense copies of their contexts; 0 for none.
        is_steady: whether results are computed in float64 and rounded, for a model that quantizes
            activations; see ``batch_invariant``.
        sinks: by layer, the scores of the heads' attention sinks, ``[num_heads]``; None for none.
    """

    def __init__(
        self,
        shape: AttentionShape,
        pool: KvPool,
        max_running: int,
        copy_bytes: int,
        *,
        is_steady: bool = False,
        sinks: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self._shape = shape
        self._sinks = [None] * shape.num_layers if sinks is None else sinks
        self._page_size = pool.page_size
        self._windows = sorted(set(shape.windows))
        self._parts = shape.num_parts
        self._width = shape.num_kv_heads * shape.head_dim
        self._per_group = shape.num_heads // shape.num_kv_heads
        self._data = pool.data
        self._codec = pool.codec
        self._dtype, self._device = pool.dtype, pool.data.device
        self._transfers = pool.transfers
        # Two flat views of the pool: by token for writes, by part (keys or values of a page) for
        # reads.
        self._by_token = pool.data.flatten(0, 3).flatten(1)
        self._by_part = pool.data.flatten(0, 2).flatten(1)
        self._layer_offsets = np.arange(shape.num_layers)[:, None] * (self._parts * pool.page_size)
        self._planner = GroupPlanner(shape, pool, max_running, copy_bytes)
        self._dense = (
            BatchInvariantAttention(shape, self._device)
            if is_steady
            else DenseAttention(shape, self._dtype, self._device)
        )
        self._write: Sequence[torch.Tensor] = ()
        self._groups: list[Group] = []
        self._chunks: list[_Chunk] = []

    def plan(self, batch: StepBatch) -> None:
        """Plan the attention of one step; see ``AttentionBackend``."""
        batch = batch.in_pool()
        size, layers = self._page_size, self._shape.num_layers
        line = np.repeat(np.arange(len(batch)), batch.counts)
        pages = batch.block_table[line, batch.cache_positions // size]
        # Index of each token's keys in the flat pool; its values, if any, follow ``size`` indices
        # later. All layers are indexed in one operation.
        keys = pages * (layers * self._parts * size) + batch.cache_positions % size
        parts = (keys[:, None] + np.arange(self._parts) * size).reshape(1, -1)
        self._write = self._tensor(parts + self._layer_offsets).unbind()
        self._groups = self._planner.plan(batch)
        self._chunks = [self._plan_chunk(batch, i) for i in range(batch.num_decode, len(batch))]

    def compact(self, batch: StepBatch, tokens: Tokens) -> None:
        """See ``AttentionBackend``."""
        batch = batch.in_pool()
        lines, sources, targets = moves(batch, tokens)
        if not len(lines):
            return
        size = self._page_size
        from_page = self._tensor(batch.block_table[lines, sources // size])
        to_page = self._tensor(batch.block_table[lines, targets // size])
        from_offset, to_offset = self._tensor(sources % size), self._tensor(targets % size)
        # Indexing copies the sources first: moves may overlap.
        self._data[to_page, :, :, to_offset] = self._data[from_page, :, :, from_offset]
        self._planner.compact(batch.sequences[lines], sources, targets)

    def zero_kv(self, batch: StepBatch, line: int, first: int, end: int) -> None:
        """See ``AttentionBackend``."""
        shift = 0 if batch.fronts is None else int(batch.fronts.shift[line])
        places = np.arange(first - shift, end - shift)
        pages = self._tensor(batch.block_table[line, places // self._page_size])
        self._data[pages, :, :, self._tensor(places % self._page_size)] = 0

    def discard_copies(self) -> None:
        """See ``AttentionBackend``."""
        self._planner.discard_copies()

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """See ``Attend``."""
        tokens = query.shape[0]  # cheaper than len(), which torch implements in Python
        new = self._written(layer, tokens, key_value)
        # A pure decode step of one group in order: nothing is gathered or scattered.
        if len(self._groups) == 1 and self._groups[0].num_tokens == tokens:
            group = self._groups[0]
            if group.lines is None:
                return self._attend_group(group, layer, query, new)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        flat = out.view(tokens, -1)
        for group in self._groups:
            if group.lines is None:
                count = group.num_tokens
                flat[:count] = self._attend_group(group, layer, query[:count], new[:count])
            else:
                answer = self._attend_group(group, layer, query[group.lines], new[group.lines])
                flat.index_copy_(0, group.lines, answer)
        self._attend_chunks(layer, query, out)
        return flat

    def _written(self, layer: int, tokens: int, key_value: torch.Tensor) -> torch.Tensor:
        """Append keys and values to the pool.

        Returns:
            Them as attention reads them, after a lossy codec's round trip, ``[tokens, num_parts *
            width]``.
        """
        if self._transfers.pending:
            self._transfers.wait_for(layer)
        if self._codec is None:
            new = key_value.reshape(tokens, self._parts * self._width).contiguous()
            self._by_token.index_copy_(0, self._write[layer], new.view(-1, self._width))
            return new
        # This step attends to its own tokens as later steps will: encoded and decoded.
        records, numbers = self._codec.round_trip(key_value)
        self._by_token.index_copy_(0, self._write[layer], records.view(self._parts * tokens, -1))
        return numbers.view(tokens, -1)

    def _attend_chunks(self, layer: int, query: torch.Tensor, out: torch.Tensor) -> None:
        """Attend prefill chunks; ``out`` has shape ``[tokens, num_heads, head_dim]``."""
        for chunk in self._chunks:
            out[chunk.first : chunk.end] = self._attend_chunk(
                chunk, layer, query[chunk.first : chunk.end]
            )

    def _append(self, group: Group, layer: int, new: torch.Tensor) -> None:
        """Append this step's tokens to the dense contexts of a group, if it has any."""
        if group.copy is not None:
            rows = group.copy.rows[layer]
            rows.index_copy_(0, group.write, new.view(-1, self._shape.head_dim))

    def _attend_group(
        self,
        group: Group,
        layer: int,
        query: torch.Tensor,
        new: torch.Tensor,
        seen: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Attend the tokens of a group; returns shape ``[num_tokens, num_heads * head_dim]``.

        Args:
            group: group of decoding sequences.
            layer: layer index.
            query: shape ``[num_tokens, num_heads, head_dim]``.
            new: this step's keys and values, shape ``[num_tokens, num_parts * width]``.
            seen: receives the attention weights of each sequence's first token, shape ``[count,
                num_heads, context]``.
        """
        count, width = group.count, group.width
        kv_heads, dim = self._shape.num_kv_heads, self._shape.head_dim
        if group.copy is None:
            k, v = self._read(group.pages, layer, count, group.length)
            k, v = k.reshape(count * kv_heads, -1, dim), v.reshape(count * kv_heads, -1, dim)
            k = k.transpose(1, 2)
        else:
            # Before attention: keys and values of the copy are views that include this step's
            # tokens.
            self._append(group, layer, new)
            k, v = group.keys[layer], group.values[layer]
        if width == 1:
            q = query.reshape(count * kv_heads, self._per_group, dim)
        else:
            query = query.reshape(count, width, kv_heads, self._per_group, dim).transpose(1, 2)
            q = query.reshape(count * kv_heads, width * self._per_group, dim)
        shared = None
        if group.prefix is not None:
            shared = SharedKeys(group.prefix.keys[layer], group.prefix.values[layer])
        mask = group.masks[self._shape.windows[layer]]
        if group.bias is not None:
            mask = biased(mask, group.bias[layer], k.shape[-1])
        answer = self._dense.lines(q, k, v, mask, shared, seen, self._sinks[layer])
        if width == 1:
            return answer.view(count, -1)
        if seen is not None:
            by_width = seen.pop().view(count, kv_heads, width, self._per_group, -1)
            seen.append(by_width[:, :, 0].flatten(1, 2))
        by_token = answer.view(count, kv_heads, width, -1).transpose(1, 2)
        return by_token.reshape(count * width, -1)

    def _attend_chunk(self, chunk: _Chunk, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Attend a prefill chunk; returns shape ``[tokens, num_heads, head_dim]``."""
        k, v = self._read(chunk.pages, layer, 1, chunk.length)
        mask = chunk.masks[self._shape.windows[layer]]
        if chunk.bias is not None:
            by_token = None if mask is None else mask[None, None, :, None]
            mask = biased(by_token, chunk.bias[layer], chunk.length)[0].transpose(1, 2)
        return self._dense.chunk(query, k[0], v[0], mask, self._sinks[layer])

    def _read(
        self, pages: torch.Tensor, layer: int, lines: int, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gather keys and values of pages, each of shape ``[sequences, kv_heads, length, dim]``."""
        # Pages are indices of their keys in layer 0.
        keys = pages + layer * self._parts
        k = self._read_part(keys, lines, length)
        return k, k if self._parts == 1 else self._read_part(keys + 1, lines, length)

    def _read_part(self, index: torch.Tensor, lines: int, length: int) -> torch.Tensor:
        found = self._by_part.index_select(0, index).view(lines, -1, *self._data.shape[-2:])
        found = found[:, :length]
        return (found if self._codec is None else self._codec.decode(found)).transpose(1, 2)

    def _plan_chunk(self, batch: StepBatch, i: int) -> _Chunk:
        end = int(batch.last[i]) + 1
        count, start = int(batch.counts[i]), int(batch.starts[i])
        length = start + count
        table = batch.block_table[i, : -(-length // self._page_size)]
        # torch aligns plain causal attention to the first key, so it fits only whole contexts.
        masks: dict[int, torch.Tensor | None] = {
            window: None
            if start == 0 and (not window or window >= length)
            else causal(
                *(count, length, window, self._dtype, self._device), chunked=self._shape.chunked
            )
            for window in self._windows
        }
        pages = self._tensor(table * (self._shape.num_layers * self._parts))
        bias = self._planner.biases.of_lines(batch, np.array([i]))
        return _Chunk(end - count, end, pages, length, masks, bias)

    def _tensor(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
