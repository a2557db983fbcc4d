"""Interfaces through which the decoder calls an attention backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Attend(Protocol):
    """Attention of one step, bound to the step's batch, block tables and positions."""

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """Append this step's keys and values to the pool, then attend.

        Args:
            layer: which layer.
            query: after rotary, shape ``[num_tokens, num_heads, head_dim]``.
            key_value: keys after rotary, then values unless these are the keys, shape
                ``[num_tokens, num_parts * num_kv_heads, head_dim]``.

        Returns:
            Shape ``[num_tokens, num_heads * head_dim]``.
        """


class RotatingAttend(ABC):
    """Attention of one step with fused rotary embedding.

    A class rather than a Protocol so that the decoder can distinguish it with ``isinstance`` from
    an ``Attend``, whose inputs are already rotated.
    """

    __slots__ = ()

    room: torch.Tensor | None = None
    """Buffer that the QKV projection of each layer must write to, shape
    ``[num_tokens, (num_heads + num_parts * num_kv_heads) * head_dim]``; None if any buffer will
    do."""

    @abstractmethod
    def __call__(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """Rotate, append this step's keys and values to the pool, then attend.

        Args:
            layer: which layer.
            heads: queries, then keys, then values unless these are the keys, contiguous, not
                rotated, shape ``[num_tokens, num_heads + num_parts * num_kv_heads, head_dim]``;
                overwritten.

        Returns:
            Shape ``[num_tokens, num_heads * out_dim]``, valid until the next layer attends.
        """
