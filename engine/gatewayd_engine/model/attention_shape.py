"""Static attention parameters of a model. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gatewayd_hooks.resources import KvShape


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Attention parameters of a model, the same for all steps.

    Attributes:
        num_layers: layers with attention.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides ``num_heads``.
        head_dim: size of a head.
        scale: factor on the scores before softmax.
        softcap: scores become ``softcap * tanh(scores / softcap)``; None for none.
        windows: per layer, the sliding window: how many of the latest positions a token attends
            to, itself included; 0 for all.
        values_are_keys: whether the keys serve as values as well, as in latent attention.
        chunked: whether windows are fixed: a token attends to positions of its own chunk, which
            begins at a multiple of the window.
        value_dim: leading numbers of a key that are needed of its value. ``Attend`` returns all
            ``head_dim`` of them nevertheless, and a ``RotatingAttend`` only these; rotated are the
            others. 0 for ``head_dim``.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None
    windows: tuple[int, ...]
    values_are_keys: bool = False
    chunked: bool = False
    value_dim: int = 0

    @property
    def kv_shape(self) -> KvShape:
        """What plugins know of it."""
        return KvShape(**{each.name: getattr(self, each.name) for each in fields(KvShape)})

    @property
    def out_dim(self) -> int:
        """Numbers of each head that a ``RotatingAttend`` returns."""
        return self.value_dim or self.head_dim

    @property
    def num_parts(self) -> int:
        """Vectors per token and KV head: 2 for a key and a value, 1 if they are the same."""
        return 1 if self.values_are_keys else 2
