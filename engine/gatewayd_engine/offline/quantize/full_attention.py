"""Causal attention over one whole sequence without a KV cache, for calibration."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from gatewayd_engine.attention.windows import first_visible
from gatewayd_engine.model.attention_shape import AttentionShape


class FullSequenceAttention:
    """Causal attention over a whole sequence; an implementation of ``Attend``.

    Args:
        shape: of the model's attention.
        sinks: see ``ServableModel``.
    """

    def __init__(self, shape: AttentionShape, sinks: Sequence[torch.Tensor] | None = None) -> None:
        self._shape = shape
        self._sinks = sinks

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """See ``Attend``; the tokens are those of the whole sequence."""
        shape = self._shape
        # [num_parts * kv_heads, n, head_dim]: all keys come before all values, if any.
        parts = key_value.transpose(0, 1).chunk(shape.num_parts)
        key, value = parts[0], parts[-1]
        seen = _seen(len(query), shape.windows[layer], chunked=shape.chunked)
        if shape.softcap is None and self._sinks is None:
            attended = functional.scaled_dot_product_attention(
                query.transpose(0, 1)[None],
                key[None],
                value[None],
                attn_mask=seen,
                scale=shape.scale,
                enable_gqa=True,
            )[0]
        else:
            group = shape.num_heads // shape.num_kv_heads
            key, value = (heads.repeat_interleave(group, 0) for heads in (key, value))
            scores = query.transpose(0, 1) @ key.transpose(1, 2) * shape.scale
            if shape.softcap is not None:
                scores = shape.softcap * (scores / shape.softcap).tanh()
            scores = scores.masked_fill_(~seen, float("-inf"))
            if self._sinks is not None:
                # One score more for each row, whose weight goes to no value.
                sink = self._sinks[layer].view(-1, 1, 1).expand(-1, len(query), 1)
                scores = torch.cat((scores, sink), -1)
            attended = scores.softmax(-1)[..., : len(query)] @ value
        return attended.transpose(0, 1).flatten(1)


def _seen(length: int, window: int, *, chunked: bool) -> torch.Tensor:
    """Return the attention mask: which positions (columns) each position (row) attends to."""
    at = torch.arange(length)
    now = at[:, None]
    return (at <= now) & (at >= first_visible(now, window, chunked=chunked) if window else True)
