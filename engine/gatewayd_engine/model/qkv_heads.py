"""Queries, keys and values of a step in one tensor, with the views that a layer takes of it.

A small step spends as much time on making views as on arithmetic, and every layer wants the same
ones. So for small steps tensor and views are kept, and each layer writes over the last one's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from gatewayd_engine.model.rotary_embedding import Rotary
from gatewayd_engine.model.spec import ModelSpec

_KEPT_TOKENS = 128
"""In larger steps making the views does not count, and keeping the tensors would."""


class QkvHeads(NamedTuple):
    """The views.

    Attributes:
        flat: what the projection writes, shape ``[num_tokens, width]``.
        query_key: the heads that are normalised and rotated,
            shape ``[num_tokens, num_heads + num_kv_heads, head_dim]``.
        rotated: the same as ``Rotary.rotate`` wants it.
        query: shape ``[num_tokens, num_heads, head_dim]``.
        key_value: keys, then values, shape ``[num_tokens, 2 * num_kv_heads, head_dim]``.
    """

    flat: torch.Tensor
    query_key: torch.Tensor
    rotated: torch.Tensor
    query: torch.Tensor
    key_value: torch.Tensor


class HeadBuffers:
    """Makes the views of each step; one for all layers of a decoder.

    Attributes:
        num_rotated: heads of queries and keys.
    """

    def __init__(self, spec: ModelSpec, rotary: Rotary) -> None:
        self._rotary = rotary
        self._split = (spec.num_heads, 2 * spec.num_kv_heads)
        self.num_rotated = spec.num_heads + spec.num_kv_heads
        self._head_dim = spec.head_dim
        self._kept: dict[int, QkvHeads] = {}

    def like(self, x: torch.Tensor) -> QkvHeads:
        """Room for the heads of hidden states ``[num_tokens, hidden]``; valid for one layer."""
        num_tokens = x.shape[0]  # a tensor's len is a call of Python
        heads = self._kept.get(num_tokens)
        if heads is None:
            heads = self._make(x)
            if num_tokens <= _KEPT_TOKENS:
                self._kept[num_tokens] = heads
        return heads

    def split(self, flat: torch.Tensor) -> torch.Tensor:
        """Heads of a projection's output, a view, shape ``[num_tokens, heads, head_dim]``."""
        return flat.view(flat.shape[0], -1, self._head_dim)

    def _make(self, x: torch.Tensor) -> QkvHeads:
        flat = x.new_empty(len(x), sum(self._split) * self._head_dim)
        heads = flat.view(len(x), -1, self._head_dim)
        query_key = heads[:, : self.num_rotated]
        query, key_value = torch.split_with_sizes(heads, self._split, 1)
        return QkvHeads(flat, query_key, self._rotary.view(query_key), query, key_value)
