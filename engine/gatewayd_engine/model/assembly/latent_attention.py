"""Building of a layer's latent attention: fused entry, absorbed key and value matrices."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gatewayd_engine.model.assembly.linears import LinearBuilder
from gatewayd_engine.model.config.latent import NORM_EPS, LatentSpec
from gatewayd_engine.model.latent_attention import HeadProduct, LatentAttention, LatentQueries
from gatewayd_engine.model.layers import LinearOp
from gatewayd_engine.model.loading.kv_scales import KvScales
from gatewayd_engine.model.parts import LayerParts, Norm
from gatewayd_engine.model.rotary_embedding import Rotary, interleave_pairs
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_engine.model.weights import concat_rows, dense, scale_rows, select_rows
from gatewayd_hooks.quantization import Weight


class LatentAttentionBuilder:
    """Builder of the latent attention of a decoder's layers; see ``AttentionBuilder``.

    Args:
        spec: of the model.
        latent: sizes of its attention.
        linears: builder of its matrices.
        parts: factory of operations for the device.
        kv_scales: KV cache scales by layer; that of the keys is folded into the weights.

    Attributes:
        rotaries: rotary embedding of each layer, the same object for all of them.
        float_parts: operations other than linear layers that can be batch-invariant.
    """

    def __init__(
        self,
        spec: ModelSpec,
        latent: LatentSpec,
        linears: LinearBuilder,
        parts: LayerParts,
        kv_scales: Mapping[int, KvScales],
    ) -> None:
        rotary = Rotary(spec.rope, spec.max_model_len, linears.device)
        self.rotaries = (rotary,) * spec.num_layers
        self.float_parts: list[object] = [rotary]
        self._spec = spec
        self._latent = latent
        self._linears = linears
        self._parts = parts
        self._kv_scales = kv_scales

    def attention(self, index: int) -> LatentAttention:
        """Build the attention of a layer."""
        prefix = f"model.layers.{index}.self_attn"
        # One scale for the whole record, which is key and value: divided here, multiplied behind.
        found = self._kv_scales.get(index)
        scale = 1.0 if found is None else found.key
        queries = None
        if self._latent.query_rank is not None:
            expand = self._query_matrix(f"{prefix}.q_b_proj", scale)
            made = self._linears.packed(f"{prefix}.q_b_proj", expand)
            queries = LatentQueries(self._norm(f"{prefix}.q_a_layernorm", made), made)
        keys, values = self._absorbed(prefix, scale)
        self.float_parts += (keys, values)
        return LatentAttention(
            index,
            self._latent,
            self.rotaries[index],
            self._entry(prefix, scale),
            self._linears.linear(f"{prefix}.o_proj"),
            queries,
            self._norm(f"{prefix}.kv_a_layernorm", None, 1 / scale),
            keys,
            values,
        )

    def _entry(self, prefix: str, scale: float) -> LinearOp:
        """Build the fused projections of the layer's input."""
        latent, linears = self._latent, self._linears
        if latent.query_rank is None:
            first = f"{prefix}.q_proj"
            queries = self._query_matrix(first, scale)
        else:
            first = f"{prefix}.q_a_proj"
            queries = linears.weights.matrix(first)
        second = f"{prefix}.kv_a_proj_with_mqa"
        order = torch.arange(latent.record_dim, device=linears.device)
        order[latent.rank :] = self._rotated_order(order[latent.rank :])
        factors = torch.ones(latent.record_dim, device=linears.device)
        factors[latent.rank :] = 1 / scale
        keys = select_rows(linears.weights.matrix(second), order)
        if scale != 1.0:
            keys = scale_rows(keys, factors)
        bias = linears.read_bias((second,))
        if bias is not None:
            before = linears.read_bias((first,))
            if before is None:
                before = bias.new_zeros(self._spec.num_heads * latent.key_dim)
            bias = torch.cat((before, (bias[order] * factors).to(bias.dtype)))
        # Named as one matrix: a quantizer sees it whole.
        return linears.packed(
            f"{prefix}.fused_qkv_a_proj_with_mqa", concat_rows([queries, keys]), bias
        )

    def _query_matrix(self, name: str, scale: float) -> Weight:
        """Read the projection to query heads: rotated pairs adjacent, multiplied by ``scale``."""
        latent = self._latent
        rows = torch.arange(self._spec.num_heads * latent.key_dim, device=self._linears.device)
        by_head = rows.view(-1, latent.key_dim)
        by_head[:, latent.nope_dim :] = self._rotated_order(by_head[:, latent.nope_dim :])
        found = select_rows(self._linears.weights.matrix(name), rows)
        return found if scale == 1.0 else scale_rows(found, torch.tensor(scale))

    def _rotated_order(self, rows: torch.Tensor) -> torch.Tensor:
        """Return row indices ``[..., rope_dim]`` with the two of each rotated pair adjacent."""
        if self._latent.are_pairs_adjacent:
            return rows
        flat = rows.reshape(-1, self._latent.rope_dim)
        return interleave_pairs(flat, self._latent.rope_dim).view(rows.shape)

    def _absorbed(self, prefix: str, scale: float) -> tuple[HeadProduct, HeadProduct]:
        """Read the matrices that expand a latent: as products with queries, and with the attended.

        They stay floats, as they are multiplied head by head.
        """
        latent = self._latent
        if f"{prefix}.k_b_proj.weight" in self._linears.weights:
            keys = self._by_head(f"{prefix}.k_b_proj").transpose(1, 2)
            values = self._by_head(f"{prefix}.v_b_proj")
        else:
            by_head = self._by_head(f"{prefix}.kv_b_proj")
            keys, values = torch.split_with_sizes(by_head, (latent.nope_dim, latent.value_dim), 1)
        made = HeadProduct(keys), HeadProduct(values.transpose(1, 2) * scale)
        self._linears.nbytes += sum(each.nbytes for each in made)
        return made

    def _by_head(self, name: str) -> torch.Tensor:
        """Read a matrix of all heads as floats, ``[heads, rows of a head, columns]``."""
        linears = self._linears
        whole = dense(linears.weights.matrix(name)).to(linears.device, linears.weights.dtype)
        return torch.unflatten(whole, 0, (self._spec.num_heads, -1))

    def _norm(self, name: str, entry: LinearOp | None, factor: float = 1.0) -> Norm:
        weight = self._linears.weights.tensor(f"{name}.weight")
        if factor != 1.0:
            weight = weight.float() * factor
        self._linears.nbytes += weight.nbytes
        return self._parts.norm(weight, NORM_EPS, 0.0, entry)
