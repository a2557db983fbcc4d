"""Attention in plain torch: the way on a CPU, and the truth for every other backend.

Sequences that compute one token are attended in a few groups of similar length, never one by
one: each group gathers its pages, padded to its longest context, and masks the rest. Chunks
of prompts are attended one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from gatewayd_engine.attention.base import AttentionShape
from gatewayd_engine.batch import StepBatch
from gatewayd_engine.kv.pool import KvPool

_GROUP_WASTE = 1.5
"""A group's longest context may be this much of its shortest before another group pays."""
_GROUP_MIN = 4
"""Fewer sequences are not worth a group of their own."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Neighbouring sequences of the batch that attend together.

    Attributes:
        first, end: which lines of the batch.
        pages: their block tables, flat, shape ``[(end - first) * pages_each]``.
        length: the padded context.
        masks: per window, 0 where a line sees a position and -inf elsewhere,
            shape ``[end - first, 1, 1, length]``.
    """

    first: int
    end: int
    pages: torch.Tensor
    length: int
    masks: dict[int, torch.Tensor]


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
    """

    def __init__(self, shape: AttentionShape, pool: KvPool) -> None:
        self._shape = shape
        self._page_size = pool.page_size
        self._groups_of_heads = shape.num_heads // shape.num_kv_heads
        self._windows = sorted(set(shape.windows))
        token = shape.num_kv_heads * shape.head_dim
        data = pool.data
        # Two flat views of the pool: by token for writing, by half page for reading.
        self._by_token = data.view(-1, token)
        self._by_half = data.view(-1, pool.page_size * token)
        self._device = data.device
        self._write = torch.empty(0, dtype=torch.int64)
        self._groups: list[_Group] = []
        self._chunks: list[_Chunk] = []

    def plan(self, batch: StepBatch) -> None:
        """Prepare for the layers of one step."""
        size, layers = self._page_size, self._shape.num_layers
        line = np.repeat(np.arange(len(batch)), batch.counts)
        pages = batch.block_table[line, batch.positions // size]
        self._write = self._tensor(pages * (layers * 2 * size) + batch.positions % size)
        self._groups = self._plan_groups(batch)
        self._chunks = [self._plan_chunk(batch, i) for i in range(batch.num_single, len(batch))]

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """See ``Attend``."""
        tokens = len(query)
        size, kv_heads, dim = self._page_size, self._shape.num_kv_heads, self._shape.head_dim
        write = self._write + layer * 2 * size
        self._by_token.index_copy_(0, write, key.reshape(tokens, -1))
        self._by_token.index_copy_(0, write + size, value.reshape(tokens, -1))
        out = torch.empty_like(query)
        window = self._shape.windows[layer]
        for group in self._groups:
            lines = group.end - group.first
            k, v = self._read(group.pages, layer, lines, group.length)
            q = query[group.first : group.end].view(lines, kv_heads, -1, dim)
            mask = group.masks[window].expand(-1, 1, q.shape[2], -1)
            out[group.first : group.end] = self._attend(q, k, v, mask).view(lines, -1, dim)
        for chunk in self._chunks:
            count = chunk.end - chunk.first
            k, v = self._read(chunk.pages, layer, 1, chunk.length)
            q = query[chunk.first : chunk.end].view(count, kv_heads, -1, dim).permute(1, 2, 0, 3)
            shared = (kv_heads, q.shape[1], chunk.length, dim)
            k, v = k.transpose(0, 1).expand(shared), v.transpose(0, 1).expand(shared)
            answer = self._attend(q, k, v, chunk.masks[window])
            out[chunk.first : chunk.end] = answer.permute(2, 0, 1, 3).reshape(count, -1, dim)
        return out.view(tokens, -1)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Softmax attention; ``mask`` None is causal. Shapes ``[b, h, queries, dim]``."""
        scale, softcap = self._shape.scale, self._shape.softcap
        if softcap is None:
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale
            )
        scores = torch.matmul(q, k.transpose(-1, -2)).mul_(scale)
        scores = scores.div_(softcap).tanh_().mul_(softcap)
        if mask is None:
            mask = self._causal(q.shape[2], k.shape[2], 0)
        return torch.matmul(torch.softmax(scores.add_(mask), -1), v)

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
        lengths = (batch.starts[: batch.num_single] + 1).tolist()  # longest first
        groups, first = [], 0
        for i in range(1, len(lengths) + 1):
            if i < len(lengths) and (
                lengths[first] <= lengths[i] * _GROUP_WASTE or i - first < _GROUP_MIN
            ):
                continue
            groups.append(self._plan_group(batch, first, i, lengths[first]))
            first = i
        return groups

    def _plan_group(self, batch: StepBatch, first: int, end: int, longest: int) -> _Group:
        size = self._page_size
        num_pages = -(-longest // size)
        table = batch.block_table[first:end, :num_pages]
        starts = batch.starts[first:end]
        # Beyond a line's own pages its block table holds whatever was there before: read the
        # line's first page instead, it is masked anyway.
        own = np.arange(num_pages) * size <= starts[:, None]
        table = np.where(own, table, table[:, :1])
        length = num_pages * size
        at, now = np.arange(length), starts[:, None]
        masks = {}
        for window in self._windows:
            seen = at <= now
            if window:
                seen &= at > now - window
            mask = np.where(seen, 0.0, -np.inf)[:, None, None, :]
            masks[window] = self._tensor(mask).to(self._by_token.dtype)
        pages = self._tensor(table.ravel() * (self._shape.num_layers * 2))
        return _Group(first, end, pages, length, masks)

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
        at = torch.arange(length, device=self._device)
        now = torch.arange(length - queries, length, device=self._device).unsqueeze(-1)
        hidden = at > now
        if window:
            hidden |= at <= now - window
        mask = torch.zeros(queries, length, dtype=self._by_token.dtype, device=self._device)
        return mask.masked_fill_(hidden, -torch.inf)

    def _tensor(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
