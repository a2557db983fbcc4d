"""Attention in plain torch: the way on a CPU, and the truth for every other backend.

Sequences that compute one token are attended in a few groups of similar length, never one by
one, padded to the longest context of the group, with a mask over the rest. Their contexts come
from dense copies (``contexts``) or, where those have no room, from the pages. Chunks of prompts
are attended one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from gatewayd_engine.attention.base import AttentionShape
from gatewayd_engine.attention.contexts import Buffer, Contexts
from gatewayd_engine.batch import StepBatch
from gatewayd_engine.kv.pool import KvPool


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences of the batch that compute one token and attend together.

    Attributes:
        lines: of the batch; None for all of them, in order.
        count: how many.
        length: the padded context.
        masks: per window, 0 where a line sees a position and -inf elsewhere,
            shape ``[count * kv_heads, 1, length]``; None where all see all.
        pages: their block tables, flat, shape ``[count * pages_each]``; unused with a copy.
        copy: their dense contexts, if they have them.
        write: where this step's tokens go in the copy, shape ``[count * 2 * kv_heads]``.
    """

    lines: torch.Tensor | None
    count: int
    length: int
    masks: dict[int, torch.Tensor | None]
    pages: torch.Tensor
    copy: Buffer | None
    write: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A sequence that computes several tokens.

    Attributes:
        first, end: which tokens of the batch.
        pages: its block table, shape ``[pages]``.
        length: its context after this step.
        masks: per window, shape ``[end - first, length]``; None where plain causal attention
            says the same.
    """

    first: int
    end: int
    pages: torch.Tensor
    length: int
    masks: dict[int, torch.Tensor | None]


class ReferenceAttention:
    """Attends over the pool; ``plan`` once per step, then a call per layer.

    Args:
        shape: the model's attention.
        pool: where keys and values are.
        max_running: most sequences that decode at once.
        copy_bytes: memory for dense copies of their contexts; 0 for none.
    """

    def __init__(
        self, shape: AttentionShape, pool: KvPool, max_running: int, copy_bytes: int
    ) -> None:
        self._shape = shape
        self._page_size = pool.page_size
        self._windows = sorted(set(shape.windows))
        self._width = shape.num_kv_heads * shape.head_dim
        self._per_group = shape.num_heads // shape.num_kv_heads
        # Two flat views of the pool: by token for writing, by half page for reading.
        self._by_token = pool.data.view(-1, self._width)
        self._by_half = pool.data.view(-1, pool.page_size * self._width)
        self._layer_offsets = np.arange(shape.num_layers)[:, None] * (2 * pool.page_size)
        self._contexts = Contexts(pool, max_running, copy_bytes)
        self._none = torch.empty(0, dtype=torch.int64)
        self._zero = torch.zeros(1, 1, 1, dtype=pool.data.dtype, device=pool.data.device)
        self._write: Sequence[torch.Tensor] = ()
        self._groups: list[_Group] = []
        self._chunks: list[_Chunk] = []

    def plan(self, batch: StepBatch) -> None:
        """Prepare for the layers of one step."""
        size, layers = self._page_size, self._shape.num_layers
        line = np.repeat(np.arange(len(batch)), batch.counts)
        pages = batch.block_table[line, batch.positions // size]
        keys = pages * (layers * 2 * size) + batch.positions % size
        both = np.stack([keys, keys + size], 1).reshape(1, -1)
        self._write = self._tensor(both + self._layer_offsets).unbind()
        self._groups = self._plan_groups(batch)
        self._chunks = [self._plan_chunk(batch, i) for i in range(batch.num_single, len(batch))]

    def taint(self, sequence: int) -> None:
        """What this sequence has written may not be finite."""
        self._contexts.taint(sequence)

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """See ``Attend``."""
        tokens = len(query)
        new = key_value.reshape(tokens, 2 * self._width).contiguous()
        self._by_token.index_copy_(0, self._write[layer], new.view(-1, self._width))
        if len(self._groups) == 1 and self._groups[0].count == tokens:
            group = self._groups[0]
            if group.lines is None:
                return self._attend_group(group, layer, query, new)
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        flat = out.view(tokens, -1)
        for group in self._groups:
            if group.lines is None:
                flat[: group.count] = self._attend_group(
                    group, layer, query[: group.count], new[: group.count]
                )
            else:
                answer = self._attend_group(group, layer, query[group.lines], new[group.lines])
                flat.index_copy_(0, group.lines, answer)
        for chunk in self._chunks:
            out[chunk.first : chunk.end] = self._attend_chunk(
                chunk, layer, query[chunk.first : chunk.end]
            )
        return flat

    def _attend_group(
        self, group: _Group, layer: int, query: torch.Tensor, new: torch.Tensor
    ) -> torch.Tensor:
        """Attend one token per line; shape ``[count, num_heads * head_dim]``."""
        count, kv_heads, dim = group.count, self._shape.num_kv_heads, self._shape.head_dim
        if group.copy is None:
            k, v = self._read(group.pages, layer, count, group.length)
            k, v = k.reshape(count * kv_heads, -1, dim), v.reshape(count * kv_heads, -1, dim)
        else:
            copy, lines = group.copy, count * kv_heads
            copy.rows[layer].index_copy_(0, group.write, new.view(-1, dim))
            k = copy.keys[layer][:lines, : group.length]
            v = copy.values[layer][:lines, : group.length]
        # The query heads that share a key head stand where queries do: nothing is repeated.
        q = query.reshape(count * kv_heads, self._per_group, dim)
        mask = group.masks[self._shape.windows[layer]]
        if self._shape.softcap is not None:
            scores = self._cap(torch.bmm(q, k.transpose(1, 2)))
            if mask is not None:
                scores.add_(mask)
        elif mask is None:
            scores = torch.baddbmm(
                self._zero, q, k.transpose(1, 2), beta=0, alpha=self._shape.scale
            )
        else:
            scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=self._shape.scale)
        return torch.bmm(torch.softmax(scores, -1), v).view(count, -1)

    def _attend_chunk(self, chunk: _Chunk, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Attend several tokens of a sequence; shape ``[tokens, num_heads, head_dim]``."""
        count, kv_heads, dim = len(query), self._shape.num_kv_heads, self._shape.head_dim
        k, v = self._read(chunk.pages, layer, 1, chunk.length)
        q = query.reshape(count, kv_heads, -1, dim).permute(1, 2, 0, 3)
        shared = (kv_heads, self._per_group, chunk.length, dim)
        k, v = k.transpose(0, 1).expand(shared), v.transpose(0, 1).expand(shared)
        answer = self._attend(q, k, v, chunk.masks[self._shape.windows[layer]])
        return answer.permute(2, 0, 1, 3).reshape(count, -1, dim)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Softmax attention; ``mask`` None is causal. Shapes ``[b, heads, tokens, dim]``."""
        if self._shape.softcap is None:
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=self._shape.scale
            )
        scores = self._cap(torch.matmul(q, k.transpose(-1, -2)))
        if mask is None:
            mask = self._causal(q.shape[2], k.shape[2], 0)
        return torch.matmul(torch.softmax(scores.add_(mask), -1), v)

    def _cap(self, scores: torch.Tensor) -> torch.Tensor:
        """Scale raw scores and bound them by the softcap, in place."""
        softcap = self._shape.softcap or 1.0
        return scores.mul_(self._shape.scale / softcap).tanh_().mul_(softcap)

    def _read(
        self, pages: torch.Tensor, layer: int, lines: int, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of pages, each of shape ``[lines, kv_heads, length, dim]``."""
        half = pages + layer * 2
        kv_heads, dim = self._shape.num_kv_heads, self._shape.head_dim
        k = self._by_half.index_select(0, half).view(lines, -1, kv_heads, dim)
        v = self._by_half.index_select(0, half + 1).view(lines, -1, kv_heads, dim)
        return k[:, :length].transpose(1, 2), v[:, :length].transpose(1, 2)

    def _plan_groups(self, batch: StepBatch) -> list[_Group]:
        placed, left_out = self._contexts.follow(batch)
        groups = [self._plan_group(batch, lines, buffer) for buffer, lines in placed]
        # Lines come longest first; a new group where contexts halve keeps the padding below half.
        while len(left_out):
            lengths = batch.starts[left_out] + 1
            count = int(np.count_nonzero(lengths * 2 > lengths[0]))
            groups.append(self._plan_group(batch, left_out[:count], None))
            left_out = left_out[count:]
        return groups

    def _plan_group(
        self, batch: StepBatch, lines: NDArray[np.int64], copy: Buffer | None
    ) -> _Group:
        size, count = self._page_size, len(lines)
        now = batch.starts[lines][:, None]
        longest = int(now.max()) + 1
        num_pages = -(-longest // size)
        pages = write = self._none
        if copy is None:
            table = batch.block_table[lines, :num_pages]
            # Beyond a line's own pages its block table holds whatever was there before: read
            # its first page instead, which is masked anyway.
            own = np.arange(num_pages) * size <= now
            table = np.where(own, table, table[:, :1])
            pages = self._tensor(table.ravel() * (self._shape.num_layers * 2))
        else:
            heads = np.arange(count * self._shape.num_kv_heads).reshape(count, -1)
            keys = heads * copy.capacity + now
            half = copy.kv[0, 0].numel() // self._shape.head_dim
            write = self._tensor(np.concatenate([keys, keys + half], 1).ravel())
        # Contexts of one length, a single sequence above all, need no mask.
        is_even = bool((now == longest - 1).all())
        length = longest if is_even else num_pages * size
        if copy is not None:
            length = min(length, copy.capacity)
        at = np.arange(length)
        masks: dict[int, torch.Tensor | None] = {}
        for window in self._windows:
            if is_even and not 0 < window < longest:
                masks[window] = None
                continue
            seen = at <= now
            if window:
                seen &= at > now - window
            mask = self._tensor(np.where(seen, np.float32(0), np.float32(-np.inf)))
            mask = mask.to(self._by_token.dtype).unsqueeze(1)
            masks[window] = mask.repeat_interleave(self._shape.num_kv_heads, 0)
        in_order = count == batch.num_single and bool((lines == np.arange(count)).all())
        return _Group(
            None if in_order else self._tensor(lines), count, length, masks, pages, copy, write
        )

    def _plan_chunk(self, batch: StepBatch, i: int) -> _Chunk:
        end = int(batch.last[i]) + 1
        count, start = int(batch.counts[i]), int(batch.starts[i])
        length = start + count
        table = batch.block_table[i, : -(-length // self._page_size)]
        masks: dict[int, torch.Tensor | None] = {
            window: None
            if start == 0 and (not window or window >= length)
            else self._causal(count, length, window)
            for window in self._windows
        }
        pages = self._tensor(table * (self._shape.num_layers * 2))
        return _Chunk(end - count, end, pages, length, masks)

    def _causal(self, queries: int, length: int, window: int) -> torch.Tensor:
        """Mask of the last ``queries`` positions of a context, shape ``[queries, length]``."""
        device = self._by_token.device
        at = torch.arange(length, device=device)
        now = torch.arange(length - queries, length, device=device).unsqueeze(-1)
        hidden = at > now
        if window:
            hidden |= at <= now - window
        mask = torch.zeros(queries, length, dtype=self._by_token.dtype, device=device)
        return mask.masked_fill_(hidden, -torch.inf)

    def _tensor(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._by_token.device)
