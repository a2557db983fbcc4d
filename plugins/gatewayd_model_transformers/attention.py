"""The attention function that this backend registers with transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from gatewayd_hooks.model_backends import Attends

SERVING = "gatewayd"
"""Name of the attention function. No mask function has it, so that no masks are made."""


@dataclass(frozen=True, slots=True)
class LayerHeads:
    """Padding of a layer's heads to the sizes of the KV cache, which all layers share.

    Attributes:
        per_group: query heads of each KV head in this layer.
        factor: on queries, for a scale that differs from the first layer's.
        key_padding: arguments of ``F.pad`` for queries, keys and values as
            ``[num_tokens, kv_heads, per_group, size]`` and ``[num_tokens, kv_heads, size]``.
        query_padding, value_padding: the same.
        value_dim: size of a value head.
    """

    per_group: int
    factor: float
    query_padding: tuple[int, ...]
    key_padding: tuple[int, ...]
    value_padding: tuple[int, ...]
    value_dim: int


class _Step:
    """One pass through the layers."""

    def __init__(self, layers: Sequence[LayerHeads], attend: Attends) -> None:
        self._layers = layers
        self._attend = attend
        self._next = 0

    def attention(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Attends for the next layer; shapes ``[heads, num_tokens, size]``.

        Returns:
            Shape ``[num_tokens, heads, value_dim]``.
        """
        index, self._next = self._next, self._next + 1
        layer = self._layers[index]
        num_heads, num_tokens, _ = query.shape
        query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        if layer.factor != 1.0:
            query = query * layer.factor
        num_kv_heads = key.shape[1]
        if any(layer.query_padding):
            groups = torch.unflatten(query, 1, (num_kv_heads, layer.per_group))
            query = F.pad(groups, layer.query_padding).flatten(1, 2)
        if any(layer.key_padding):
            key = F.pad(key, layer.key_padding)
        if any(layer.value_padding):
            value = F.pad(value, layer.value_padding)
        out = self._attend(index, query, torch.cat((key, value), 1))
        out = out.view(num_tokens, *query.shape[1:])
        if any(layer.query_padding):
            groups = torch.unflatten(out, 1, (key.shape[1], -1))
            out = groups[:, :num_kv_heads, : layer.per_group].reshape(num_tokens, num_heads, -1)
        return out[..., : layer.value_dim]


_step: ContextVar[_Step] = ContextVar("step")


@contextmanager
def attending(layers: Sequence[LayerHeads], attend: Attends) -> Iterator[None]:
    """Let the layers that run inside attend through ``attend``."""
    token = _step.set(_Step(layers, attend))
    try:
        yield
    finally:
        _step.reset(token)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **_: Any,  # noqa: ANN401
) -> tuple[torch.Tensor, None]:
    """Attention function of transformers; shapes ``[1, heads, num_tokens, size]``.

    Scale, window, softcap and sinks are known from the trace.
    """
    return _step.get().attention(query[0], key[0], value[0]).unsqueeze(0), None
