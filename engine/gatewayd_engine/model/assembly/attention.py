"""Building of a layer's attention: fused projection, per-head norms, KV cache scales."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gatewayd_engine.model.assembly.linears import LinearBuilder
from gatewayd_engine.model.decoder import Attention
from gatewayd_engine.model.loading.kv_scales import (
    KvScales,
    row_factors,
    scaled_norms,
    scaled_output,
)
from gatewayd_engine.model.parts import LayerParts
from gatewayd_engine.model.qkv_heads import HeadBuffers
from gatewayd_engine.model.rotary_embedding import Rotary, interleave_pairs
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_engine.model.weights import scale_rows, select_rows


class AttentionBuilder:
    """Builder of the attention of a decoder's layers.

    Args:
        spec: of the model.
        linears: builder of its matrices.
        parts: factory of operations for the device.
        kv_scales: KV cache scales by layer, to be folded into the weights.

    Attributes:
        rotary: rotary embedding shared by the layers.
    """

    def __init__(
        self,
        spec: ModelSpec,
        linears: LinearBuilder,
        parts: LayerParts,
        kv_scales: Mapping[int, KvScales],
    ) -> None:
        self.rotary = Rotary(spec.rope, spec.max_model_len, linears.device)
        self._spec = spec
        self._linears = linears
        self._parts = parts
        self._kv_scales = kv_scales
        self._buffers = HeadBuffers(spec, self.rotary)
        self._order = _order(spec, linears.device)

    def attention(self, index: int) -> Attention:
        """Build the attention of a layer."""
        spec, prefix = self._spec, f"model.layers.{index}.self_attn"
        names = self._linears.matrix_names(prefix, "qkv_proj", ("q_proj", "k_proj", "v_proj"))
        bias, joint, scales = (
            self._linears.read_bias(names),
            self._linears.read_joined(names),
            self._kv_scales.get(index),
        )
        name = f"{prefix}.o_proj"
        back = self._linears.weights.matrix(name)
        if scales is not None:
            factors = row_factors(spec, scales)
            joint, back = scale_rows(joint, factors), scaled_output(back, scales)
            bias = None if bias is None else (bias * factors.to(bias.device)).to(bias.dtype)
        qkv = self._linears.packed(
            f"{prefix}.qkv_proj",
            select_rows(joint, self._order),
            None if bias is None else bias[self._order],
        )
        out = self._linears.packed(name, back, self._linears.read_bias((name,)))
        qk_norm = None
        if spec.family.qk_norm:
            query = self._linears.weights.tensor(f"{prefix}.q_norm.weight").expand(
                spec.num_heads, -1
            )
            key = self._linears.weights.tensor(f"{prefix}.k_norm.weight").expand(
                spec.num_kv_heads, -1
            )
            norms = torch.cat((query, key))
            if scales is not None:
                norms = scaled_norms(norms, spec, scales)
            # In the order of the projection's rows, which are interleaved as well.
            norms = interleave_pairs(norms, spec.rope.rotary_dim)
            self._linears.nbytes += norms.nbytes
            qk_norm = self._parts.head_norm(norms, spec.norm_eps)
        return Attention(index, self.rotary, self._buffers, qkv, out, qk_norm)


def _order(spec: ModelSpec, device: torch.device) -> torch.Tensor:
    """Return the row order of a fused QKV projection for the rotary embedding, int64.

    Rows of queries and keys are interleaved; rows of values stay in place.
    """
    rotated = spec.num_heads + spec.num_kv_heads
    heads = torch.arange((rotated + spec.num_kv_heads) * spec.head_dim, device=device)
    # Row indices in place of rows: one selection then reorders codes, scales and biases alike.
    heads = torch.unflatten(heads, 0, (-1, spec.head_dim))
    turned = interleave_pairs(heads[:rotated], spec.rope.rotary_dim)
    return torch.cat((turned, heads[rotated:])).flatten()
