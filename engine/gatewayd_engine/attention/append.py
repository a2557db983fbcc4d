"""Rotary embedding and KV append of a layer, before its attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from gatewayd_engine.attention.step_inputs import StepInputs
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape

if TYPE_CHECKING:
    from gatewayd_engine.kernels.base import Kernels


class Append:
    """Applies rotary embedding and appends keys and values to the KV pool.

    Args:
        shape: attention shape of the model.
        pool: KV pool.
        kernels: kernels of the device.
        tables: cosines and sines of each layer; see ``Kernels.rope_append``.
    """

    __slots__ = ("_kernels", "_num_heads", "_pool", "_rotated_from", "_tables")

    def __init__(
        self, shape: AttentionShape, pool: KvPool, kernels: Kernels, tables: Sequence[torch.Tensor]
    ) -> None:
        self._num_heads = shape.num_heads
        # Of a latent's record, what is behind the value.
        self._rotated_from = shape.value_dim
        self._pool = pool
        self._kernels = kernels
        self._tables = tables

    def __call__(
        self, layer: int, heads: torch.Tensor, inputs: StepInputs, *, keeps_keys: bool = False
    ) -> torch.Tensor:
        """Wait for pending loads of the layer's pages, then rotate and append.

        Args:
            layer: layer index.
            heads: queries, keys and values; see ``RotatingAttend``.
            inputs: inputs of the step, with each token's position and KV slot.
            keeps_keys: see ``Kernels.rope_append``.

        Returns:
            The rotated queries, a view, shape ``[num_tokens, num_heads, head_dim]``.
        """
        # Attention reads this layer's pages next, some of which a KV tier may still be loading.
        if self._pool.transfers.pending:
            self._pool.transfers.wait_for(layer)
        self._kernels.rope_append(
            heads,
            self._tables[layer],
            inputs.positions,
            inputs.write,
            self._pool.data,
            layer,
            self._num_heads,
            keeps_keys,
            self._rotated_from,
        )
        return heads[:, : self._num_heads]
