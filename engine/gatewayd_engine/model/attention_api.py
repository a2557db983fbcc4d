"""What the decoder asks of attention, and what a backend is told about the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Attend(Protocol):
    """Attention of one step: already knows the batch, its pages and its positions."""

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """Append this step's keys and values to the pool, then attend.

        Args:
            layer: which layer.
            query: after rotary, shape ``[num_tokens, num_heads, head_dim]``.
            key_value: keys after rotary, then values, shape
                ``[num_tokens, 2 * num_kv_heads, head_dim]``.

        Returns:
            Shape ``[num_tokens, num_heads * head_dim]``.
        """


class RotatingAttend(ABC):
    """Attention of one step that rotates as well.

    A class and no Protocol, so that the decoder can tell it from an ``Attend``, which is given
    what has been rotated.
    """

    __slots__ = ()

    room: torch.Tensor | None = None
    """Where the decoder has to write each layer's heads, if it may not choose, shape
    ``[num_tokens, (num_heads + 2 * num_kv_heads) * head_dim]``."""

    @abstractmethod
    def __call__(self, layer: int, heads: torch.Tensor) -> torch.Tensor:
        """Rotate, append this step's keys and values to the pool, then attend.

        Args:
            layer: which layer.
            heads: queries, then keys, then values, contiguous, not rotated, shape
                ``[num_tokens, num_heads + 2 * num_kv_heads, head_dim]``; written over.

        Returns:
            Shape ``[num_tokens, num_heads * head_dim]``, valid until the next layer attends.
        """
