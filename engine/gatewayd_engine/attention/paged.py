"""Paged attention in plain torch, on any device: the reference for other device backends.

Also the fallback where FlashInfer is not installed or does not support the model's head dimension.
Decoding sequences are attended together, padded to the longest; prefill chunks one after another.
Sizes come from the host's plan, without device synchronisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.step_inputs import StepInputs
from gatewayd_engine.attention.windows import first_visible
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_api import RotatingAttend
from gatewayd_engine.model.attention_shape import AttentionShape

if TYPE_CHECKING:
    from gatewayd_engine.attention.triton_decode import DecodeKernels, EagerAttend


@dataclass(frozen=True, slots=True)
class _Lines:
    """Sequences that attend together, each to its own pages.

    Attributes:
        first, end: range of their tokens in the step.
        pages: int32, shape ``[sequences * pages_each]``; shorter sequences repeat their last page.
        seen: per window, mask of the positions that each token sees, bool, shape
            ``[sequences, tokens_each, pages_each * page_size]``.
    """

    first: int
    end: int
    pages: torch.Tensor
    seen: dict[int, torch.Tensor]


class PagedAttention:
    """Torch implementation of ``DeviceAttention``.

    Args:
        shape: attention shape of the model.
        pool: KV pool.
        append: applies rotary embedding and appends keys and values to the pool.
        kernels: decode kernels; None attends decoding sequences in torch as well.
        sinks: see ``device_attention``.
    """

    least_saved = None

    def __init__(
        self,
        shape: AttentionShape,
        pool: KvPool,
        append: Append,
        kernels: DecodeKernels | None = None,
        sinks: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self._shape = shape
        self._pool = pool
        self._append = append
        self._kernels = kernels
        self._sinks = sinks
        self._windows = sorted(set(shape.windows))

    def eager(self, inputs: StepInputs, out: torch.Tensor | None = None) -> RotatingAttend:
        """See ``DeviceAttention``."""
        host = inputs.host
        tokens, pages = host.query_indptr.tolist(), host.page_indptr.tolist()
        n = host.num_decode
        launches, groups, kernels = [], [], self._kernels
        if n and kernels is not None:
            launches.append(kernels.eager(inputs, n))
        elif n:
            groups.append(self._lines(inputs, 0, n, 0, n, pages))
        if n < host.num_lines and kernels is not None and kernels.has_prompts:
            launches.append(kernels.prompts(inputs, n))
        else:
            for line in range(n, host.num_lines):
                first, end = tokens[line : line + 2]
                groups.append(self._lines(inputs, line, line + 1, first, end, pages))
        return _Step(
            self._shape, self._pool, self._append, self._sinks, inputs, groups, out, launches
        )

    def _lines(
        self, inputs: StepInputs, line: int, end_line: int, first: int, end: int, indptr: list[int]
    ) -> _Lines:
        """Plan sequences ``line`` to ``end_line``, which have the same number of tokens."""
        count, size = end_line - line, self._pool.page_size
        width = max(b - a for a, b in zip(indptr[line:end_line], indptr[line + 1 :], strict=False))
        device = inputs.pages.device
        begins = inputs.page_indptr[line:end_line].unsqueeze(1)
        ends = inputs.page_indptr[line + 1 : end_line + 1].unsqueeze(1)
        offsets = torch.arange(width, dtype=torch.int32, device=device)
        table = torch.minimum(begins + offsets, ends - 1).view(-1)
        lengths = (ends - begins - 1) * size + inputs.last_page_len[line:end_line].unsqueeze(1)
        at = torch.arange(width * size, dtype=torch.int32, device=device)
        back = torch.arange((end - first) // count - 1, -1, -1, dtype=torch.int32, device=device)
        # Position of each token in its sequence.
        now = (lengths - 1 - back).unsqueeze(2)
        causal, chunked = at <= now, self._shape.chunked
        seen = {
            window: causal & (at >= first_visible(now, window, chunked=chunked))
            if window
            else causal
            for window in self._windows
        }
        return _Lines(first, end, inputs.pages.index_select(0, table), seen)


@dataclass(slots=True, eq=False, repr=False)
class _Step(RotatingAttend):
    """Attention of the layers of one step."""

    _shape: AttentionShape
    _pool: KvPool
    _append: Append
    _sinks: Sequence[torch.Tensor] | None
    _inputs: StepInputs
    _groups: list[_Lines]
    _out: torch.Tensor | None
    _launches: list[EagerAttend]

    def __call__(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """See ``RotatingAttend``."""
        query = self._append(layer, heads, self._inputs)
        out = self._out
        if out is None:
            out = query.new_empty(*query.shape[:2], self._shape.out_dim)
        for launch in self._launches:
            launch(layer, query, out)
        for group in self._groups:
            out[group.first : group.end] = self._attend(
                layer, group, query[group.first : group.end]
            )
        return out.flatten(1)

    def _attend(self, layer: int, group: _Lines, query: torch.Tensor) -> torch.Tensor:
        """Attend queries ``[sequences * tokens_each, num_heads, head_dim]`` to their pages."""
        shape = self._shape
        seen = group.seen[shape.windows[layer]]
        lines, each, length = seen.shape
        # [sequences, kv_heads, tokens * query heads per KV head, dim]: keys are not repeated.
        q = query.reshape(lines, each, shape.num_kv_heads, -1, shape.head_dim).transpose(1, 2)
        per_group = q.shape[3]
        q = q.reshape(lines, shape.num_kv_heads, each * per_group, shape.head_dim)
        parts = self._read(layer, group.pages)
        k, v = (
            half.reshape(lines, length, shape.num_kv_heads, -1).transpose(1, 2)
            for half in (parts[:, 0], parts[:, -1, ..., : shape.out_dim])
        )
        mask = seen.repeat_interleave(per_group, 1).unsqueeze(1)
        if shape.softcap is None and self._sinks is None:
            answer = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=shape.scale)
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)).float().mul_(shape.scale)
            if shape.softcap is not None:
                scores.div_(shape.softcap).tanh_().mul_(shape.softcap)
            scores.masked_fill_(~mask, -torch.inf)
            if self._sinks is not None:
                # As a last score, which takes its part of the weights and has no value.
                sinks = self._sinks[layer].view(1, shape.num_kv_heads, 1, per_group)
                own = sinks.expand(lines, -1, each, -1).reshape(*scores.shape[:3], 1)
                scores = torch.cat((scores, own), -1)
            weights = torch.softmax(scores, -1)[..., :length]
            answer = torch.matmul(weights.to(v.dtype), v)
        answer = answer.view(lines, shape.num_kv_heads, each, per_group, shape.out_dim)
        return answer.transpose(1, 2).reshape(*query.shape[:2], shape.out_dim)

    def _read(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """Gather keys and values of pages, in the dtype of queries."""
        data, dtype = self._pool.data[:, layer], self._pool.dtype
        if data.dtype == dtype:
            return data.index_select(0, pages)
        # Indexed as bytes: torch does not implement indexing for every 8-bit float dtype.
        return data.view(torch.uint8).index_select(0, pages).view(data.dtype).to(dtype)
