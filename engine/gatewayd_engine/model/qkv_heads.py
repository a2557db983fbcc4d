"""QKV buffers: queries, keys and values of a step in one tensor, with cached views.

A small step spends as much time on making views as on arithmetic, and every layer needs the same
ones. So for small steps the tensor and its views are cached by number of tokens, and each layer
overwrites those of the previous one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from gatewayd_engine.model.rotary_embedding import Rotary
from gatewayd_engine.model.spec import ModelSpec

_MAX_CACHED_TOKENS = 128
"""Larger steps are not cached: making views is cheap in comparison, and the tensors are large."""


class QkvHeads(NamedTuple):
    """Views of one QKV buffer.

    Attributes:
        flat: output of the QKV projection, shape ``[num_tokens, width]``.
        query_key: heads that are normalised and rotated,
            shape ``[num_tokens, num_heads + num_kv_heads, head_dim]``.
        rotated: view of ``query_key`` in the form of ``Rotary.rotate``.
        query: shape ``[num_tokens, num_heads, head_dim]``.
        key_value: keys, then values, shape ``[num_tokens, 2 * num_kv_heads, head_dim]``.
    """

    flat: torch.Tensor
    query_key: torch.Tensor
    rotated: torch.Tensor
    query: torch.Tensor
    key_value: torch.Tensor


class HeadBuffers:
    """Cache of QKV buffers, shared by all layers of a decoder.

    Attributes:
        num_heads: number of query heads.
        num_rotated: number of query and key heads.
    """

    def __init__(self, spec: ModelSpec, rotary: Rotary) -> None:
        self._rotary = rotary
        self._split = (spec.num_heads, 2 * spec.num_kv_heads)
        self.num_heads = spec.num_heads
        self.num_rotated = spec.num_heads + spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._cached: dict[int, QkvHeads] = {}

    def like(self, x: torch.Tensor) -> QkvHeads:
        """Return a buffer for hidden states ``[num_tokens, hidden]``; valid for one layer."""
        num_tokens = x.shape[0]  # ``len`` of a tensor is a Python call
        heads = self._cached.get(num_tokens)
        if heads is None:
            heads = self._make(x)
            if num_tokens <= _MAX_CACHED_TOKENS:
                # Layers may share it: each has appended its keys before the next one projects.
                self._cached[num_tokens] = heads
        return heads

    def split(self, flat: torch.Tensor) -> torch.Tensor:
        """View the output of the QKV projection as ``[num_tokens, heads, head_dim]``."""
        return flat.view(flat.shape[0], -1, self._head_dim)

    def _make(self, x: torch.Tensor) -> QkvHeads:
        flat = x.new_empty(len(x), sum(self._split) * self._head_dim)
        heads = flat.view(len(x), -1, self._head_dim)
        query_key = heads[:, : self.num_rotated]
        query, key_value = torch.split_with_sizes(heads, self._split, 1)
        return QkvHeads(flat, query_key, self._rotary.view(query_key), query, key_value)
