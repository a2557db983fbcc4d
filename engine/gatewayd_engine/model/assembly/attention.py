"""Building of a layer's attention: fused projection, per-head norms, KV cache scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from gatewayd_engine.model.assembly.linears import LinearBuilder
from gatewayd_engine.model.decoder import Attention
from gatewayd_engine.model.layers import ProjectionNorm
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
        rotaries: rotary embedding of each layer, the same object where settings are equal.
    """

    def __init__(
        self,
        spec: ModelSpec,
        linears: LinearBuilder,
        parts: LayerParts,
        kv_scales: Mapping[int, KvScales],
    ) -> None:
        made = {
            rope: Rotary(rope, spec.max_model_len, linears.device) for rope in {*spec.layer_ropes}
        }
        self.rotaries = tuple(made[rope] for rope in spec.layer_ropes)
        self._spec = spec
        self._linears = linears
        self._parts = parts
        self._kv_scales = kv_scales
        self._buffers = HeadBuffers(spec, self.rotaries[0])
        self._order = _order(spec, linears.device)

    @property
    def float_parts(self) -> Sequence[object]:
        """Operations other than linear layers that can be batch-invariant."""
        return self.rotaries

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
            factors = row_factors(spec, scales, has_norms=self._has_norms(index))
            joint, back = scale_rows(joint, factors), scaled_output(back, scales)
            bias = None if bias is None else (bias * factors.to(bias.device)).to(bias.dtype)
        qkv = self._linears.packed(
            f"{prefix}.qkv_proj",
            select_rows(joint, self._order),
            None if bias is None else bias[self._order],
        )
        out = self._linears.packed(name, back, self._linears.read_bias((name,)))
        return Attention(
            index, self.rotaries[index], self._buffers, qkv, out, self._qk_norm(index, scales)
        )

    def _has_norms(self, index: int) -> bool:
        """Whether the queries and keys of a layer are normalised."""
        kind = self._spec.family.qk_norm
        return kind is not None and (kind != "unit" or self.rotaries[index].is_rotating)

    def _qk_norm(
        self, index: int, scales: KvScales | None
    ) -> Callable[[torch.Tensor], object] | None:
        """Build the in-place norm of queries and keys ``[n, heads, head_dim]``; None for none."""
        if not self._has_norms(index):
            return None
        spec, heads = self._spec, (self._spec.num_heads, self._spec.num_kv_heads)
        if spec.family.qk_norm == "unit":
            # Before rotary or after it: rotations keep the length of a head.
            norms = torch.ones(sum(heads), spec.head_dim, device=self._linears.device)
        else:
            prefix, read = f"model.layers.{index}.self_attn", self._linears.weights.tensor
            # Of a head, the weight is the same for all of them.
            norms = torch.cat(
                [
                    read(f"{prefix}.{name}.weight").view(-1, spec.head_dim).expand(count, -1)
                    for name, count in zip(("q_norm", "k_norm"), heads, strict=True)
                ]
            )
        # Stored as in the other norms.
        norms = norms.float() + float(spec.family.norm_offset)
        if scales is not None:
            norms = scaled_norms(norms, spec, scales)
        # In the order of the projection's rows.
        norms = _in_pairs(norms, spec)
        self._linears.nbytes += norms.nbytes
        if spec.family.qk_norm != "projection":
            return self._parts.head_norm(norms, spec.norm_eps)
        query, key = (some.reshape(1, -1) for some in torch.split_with_sizes(norms, heads))
        return ProjectionNorm(
            self._parts.head_norm(query, spec.norm_eps),
            self._parts.head_norm(key, spec.norm_eps),
            spec.num_heads,
            norms.contiguous(),
        )


def _order(spec: ModelSpec, device: torch.device) -> torch.Tensor:
    """Return the row order of a fused QKV projection for the rotary embedding, int64.

    Rows of queries and keys are interleaved; rows of values stay in place.
    """
    rotated = spec.num_heads + spec.num_kv_heads
    heads = torch.arange((rotated + spec.num_kv_heads) * spec.head_dim, device=device)
    # Row indices in place of rows: one selection then reorders codes, scales and biases alike.
    heads = torch.unflatten(heads, 0, (-1, spec.head_dim))
    turned = _in_pairs(heads[:rotated], spec)
    return torch.cat((turned, heads[rotated:])).flatten()


def _in_pairs(rows: torch.Tensor, spec: ModelSpec) -> torch.Tensor:
    """Order dimensions of heads ``[heads, head_dim]`` so that those of a pair are adjacent."""
    return rows if spec.family.adjacent_pairs else interleave_pairs(rows, spec.rope.rotary_dim)
