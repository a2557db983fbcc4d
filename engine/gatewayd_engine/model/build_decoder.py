"""Building of a decoder from named weights: fused projections, quantization and packing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import torch

from gatewayd_engine.model.batch_invariance import BatchInvariantMode
from gatewayd_engine.model.decoder import Attention, Decoder, DecoderLayer, Mlp
from gatewayd_engine.model.embedding_table import EmbeddingTable, FloatTable, embedding_table
from gatewayd_engine.model.layers import FeedForward, LinearOp
from gatewayd_engine.model.linears.expert_stacks import Stack, describe_weight
from gatewayd_engine.model.linears.plugin_matmul import UnfitMatmul
from gatewayd_engine.model.linears.select_gpu import DenseGpuLinear
from gatewayd_engine.model.loading.kv_scales import (
    KvScales,
    row_factors,
    scaled_norms,
    scaled_output,
)
from gatewayd_engine.model.loading.layout import expert_parts, expert_prefix, layer_norms
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.moe import MixtureOfExperts, Router
from gatewayd_engine.model.parts import Gate, LayerParts, Norm
from gatewayd_engine.model.qkv_heads import HeadBuffers
from gatewayd_engine.model.rotary_embedding import Rotary, interleave_pairs
from gatewayd_engine.model.spec import ModelSpec, MoeSpec
from gatewayd_engine.model.weights import (
    concat_rows,
    device_of,
    scale_rows,
    select_rows,
    to_device,
    to_dtype,
)
from gatewayd_hooks.quantization import Matrix, Weight

_log = logging.getLogger(__name__)


class Weights(Protocol):
    """Source of the tensors of a ``layout``: a checkpoint or a random generator."""

    num_parameters: int
    """Elements of all tensors together."""
    dtype: torch.dtype
    """Dtype of the decoder."""

    def __contains__(self, name: object) -> bool:
        """Whether the layout has a tensor with this name."""

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor by its name, in the decoder's dtype and on its device."""

    def matrix(self, name: str) -> Weight:
        """Return a matrix, possibly quantized, by its name without ``.weight``."""


Quantize = Callable[[Matrix, torch.Tensor], Weight]
"""Quantizes a float weight, or returns it unchanged."""
_EMBEDDING = "model.embed_tokens"
_HEAD = "lm_head"


def assemble(
    spec: ModelSpec,
    weights: Weights,
    parts: LayerParts,
    quantize: Quantize | None = None,
    kv_scales: Mapping[int, KvScales] | None = None,
) -> Decoder:
    """Build the decoder of a spec from named weights.

    Matrices are read one at a time, fused with those of the same input, quantized and packed, so
    that no more than one unpacked matrix is in memory at any time.

    Args:
        spec: of the model.
        weights: its tensors.
        parts: factory of the layers' operations for the weights' device.
        quantize: called for each float matrix except the embedding and expert routers, which are
            small and sensitive to quantization; None to keep all weights as they are.
        kv_scales: KV cache scales by layer, to be folded into the weights.
    """
    table = weights.matrix(_EMBEDDING)
    builder = LayerBuilder(spec, weights, parts, quantize, device_of(table), kv_scales or {})
    # Before the layers: a head that is the table is packed from its floats, which are not kept.
    tied = builder.packed(_HEAD, table) if spec.tie_word_embeddings else None
    if isinstance(table, torch.Tensor) and _is_shared(table, tied):
        # In memory once, and counted with the head.
        embedding: EmbeddingTable = FloatTable(table, weights.dtype)
    else:
        embedding = embedding_table(table, weights.dtype)
        builder.nbytes += embedding.nbytes
    del table
    layers = [builder.layer(index) for index in range(spec.num_layers)]
    norm = builder.norm("model.norm")
    head = builder.linear(_HEAD) if tied is None else tied
    # GPU kernels add in whatever order is fastest: batch invariance is guaranteed on CPUs only.
    rounds_inputs = embedding.device.type == "cpu" and builder.set_batch_invariant(head)
    return Decoder(
        spec,
        embedding,
        builder.rotary,
        layers,
        norm,
        head,
        weights.num_parameters,
        builder.nbytes,
        rounds_inputs=rounds_inputs,
        is_capturable=builder.is_capturable,
    )


def _is_shared(table: torch.Tensor, head: LinearOp | None) -> bool:
    return isinstance(head, DenseGpuLinear) and head.shares_storage(table)


class LayerBuilder:
    """Builder of decoder layers; see ``assemble`` for the arguments.

    Attributes:
        rotary: rotary embedding shared by the layers.
        nbytes: bytes of the weights built so far.
        is_capturable: see ``Decoder``; for the layers built so far.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        parts: LayerParts,
        quantize: Quantize | None,
        device: torch.device,
        kv_scales: Mapping[int, KvScales] = MappingProxyType({}),
    ) -> None:
        self.rotary = Rotary(spec.rope, spec.max_model_len, device)
        self.nbytes = 0
        self.is_capturable = True
        self._spec = spec
        self._weights = weights
        self._parts = parts
        self._quantize = quantize
        self._kv_scales = kv_scales
        self._buffers = HeadBuffers(spec, self.rotary)
        self._order = _order(spec, device)
        self._linears: list[LinearOp] = []
        self._gates: list[Gate] = []

    def layer(self, index: int, mlp: Mlp | None = None) -> DecoderLayer:
        """Build one layer, with ``mlp`` instead of its own feed-forward part if given."""
        spec, prefix = self._spec, f"model.layers.{index}"
        attention = self._attention(index, f"{prefix}.self_attn")
        mlp = self._mlp(index) if mlp is None else mlp
        # Parts before norms: a norm may produce the form that the matrix after it reads. Norms
        # after a part feed the residual stream instead.
        entries = (attention.entry, mlp.entry, None, None)
        before_attention, before_mlp, *after = (
            self.norm(f"{prefix}.{name}", entry)
            for name, entry in zip(layer_norms(spec), entries, strict=False)
        )
        after_attention, after_mlp = after or (None, None)
        return DecoderLayer(
            attention, mlp, before_attention, before_mlp, after_attention, after_mlp
        )

    def router(self, index: int) -> Router:
        """Build the expert router of a layer.

        Raises:
            ValueError: the model has no experts.
        """
        moe = self._spec.moe
        if moe is None:
            raise ValueError(f"layer {index} has no experts")
        gate = f"{self._expert_prefix(index)}.gate"
        scores = self.packed(gate, self._weights.matrix(gate), self._bias((gate,)), is_kept=True)
        return Router(scores, moe.top_k, renormalize=moe.renormalize)

    def expert(self, index: int, number: int) -> FeedForward:
        """Build one of the experts of a layer."""
        prefix = f"{self._expert_prefix(index)}.experts.{number}"
        return self._feed_forward(prefix, expert_parts(self._spec))

    def norm(self, name: str, entry: LinearOp | None = None) -> Norm:
        """Build a norm of the residual stream; ``entry`` is the only matrix it feeds, if any."""
        weight = self._weights.tensor(f"{name}.weight")
        self.nbytes += weight.nbytes
        offset = float(self._spec.family.norm_offset)
        return self._parts.norm(weight, self._spec.norm_eps, offset, entry)

    def linear(self, name: str) -> LinearOp:
        """Build a linear layer by its name, with its bias if it has one."""
        return self.packed(name, self._weights.matrix(name), self._bias((name,)))

    def packed(
        self,
        name: str,
        weight: Weight,
        bias: torch.Tensor | None = None,
        *,
        is_kept: bool = False,
        activation: str | None = None,
    ) -> LinearOp:
        """Build a linear layer from a weight, quantized first unless ``is_kept``.

        ``activation`` is that of the gate that is its only consumer; see ``LayerParts.linear``.

        Raises:
            LoadError: a matmul plugin fails on it.
        """
        if not is_kept:
            weight = self._quantized(name, weight)
        return self._linear(name, self._settled(weight), bias, activation)

    def _quantized(self, name: str, weight: Weight) -> Weight:
        if isinstance(weight, torch.Tensor) and self._quantize is not None:
            return self._quantize(Matrix(name, *weight.shape), weight.float())
        return weight

    def _settled(self, weight: Weight) -> Weight:
        """Move a weight to the device, with floats in the decoder's dtype."""
        return to_dtype(to_device(weight, self._order.device), self._weights.dtype)

    def _linear(
        self, name: str, weight: Weight, bias: torch.Tensor | None, activation: str | None
    ) -> LinearOp:
        try:
            made = self._parts.linear(weight, bias, self._weights.dtype, activation)
        except UnfitMatmul as error:
            raise LoadError(f"{name}: {error}") from error
        self.nbytes += made.nbytes
        self._linears.append(made)
        return made

    def set_batch_invariant(self, head: LinearOp) -> bool:
        """Make float operations batch-invariant if any product quantizes its input.

        Returns:
            Whether one does.
        """
        if not any(linear.rounds_inputs for linear in self._linears):
            return False
        # The output of a float head is not quantized any more.
        linears = [linear for linear in self._linears if linear is not head]
        # Other parts, such as integer products, are batch-invariant already.
        for part in (self.rotary, *self._gates, *linears):
            if isinstance(part, BatchInvariantMode):
                part.is_steady = True
        return True

    def _mlp(self, index: int) -> Mlp:
        moe = self._spec.moe
        if moe is None or not moe.layers[index]:
            names = ("gate_proj", "up_proj", "down_proj")
            return self._feed_forward(f"model.layers.{index}.mlp", names)
        # One kernel for all experts where their format allows it, else one expert at a time.
        grouped = self._grouped(index, moe)
        if grouped is not None:
            return grouped
        self.is_capturable = False
        experts = [self.expert(index, number) for number in range(moe.num_experts)]
        return MixtureOfExperts(self.router(index), experts)

    def _grouped(self, index: int, moe: MoeSpec) -> Mlp | None:
        """Build a layer's experts as grouped matrix products; None if ``parts`` cannot."""
        parts, experts = self._parts.experts, moe.num_experts
        if parts is None:
            return None
        hidden, inner = self._spec.hidden_size, moe.intermediate_size
        sizes = ((2 * inner, hidden), (hidden, inner))
        stacks: list[Stack] = []
        # Each matrix is copied to its stack before the next one is read.
        for number in range(experts):
            for part, weight in enumerate(self._expert_weights(index, number)):
                form = parts.form(weight, self._weights.dtype)
                if form is not None and not number:
                    stacks.append(parts.stack(form, experts, *sizes[part]))
                if form is None or not stacks[part].set_expert(number, form):
                    what = describe_weight(weight) if form is None else "of several formats"
                    self._warn_ungrouped(index, what)
                    # Read again one by one, from the first on: experts already stacked are dropped.
                    return None
        gate_up, down = stacks
        self.nbytes += gate_up.nbytes + down.nbytes
        name, dtype = self._spec.activation, self._weights.dtype
        return parts.mixture(self.router(index), gate_up, down, name, dtype)

    def _expert_weights(self, index: int, number: int) -> Iterator[Weight]:
        """Yield the matrices of an expert, gate and up fused, on the device."""
        prefix = f"{self._expert_prefix(index)}.experts.{number}"
        gate, up, down = expert_parts(self._spec)
        joined = self._matrix_names(prefix, "gate_up_proj", (gate, up))
        for name, names in (("gate_up_proj", joined), (down, [f"{prefix}.{down}"])):
            yield self._settled(self._quantized(f"{prefix}.{name}", self._join(names)))

    def _warn_ungrouped(self, index: int, what: str) -> None:
        """Log once why experts run one at a time."""
        # True until the first such layer has been built.
        if self.is_capturable:
            _log.warning(
                "experts of layer %d are %s: experts run one at a time, the host waits for the"
                " device in each of their layers, and steps are not captured",
                *(index, what),
            )

    def _expert_prefix(self, index: int) -> str:
        return expert_prefix(self._spec, f"model.layers.{index}", self._weights)

    def _attention(self, index: int, prefix: str) -> Attention:
        spec = self._spec
        names = self._matrix_names(prefix, "qkv_proj", ("q_proj", "k_proj", "v_proj"))
        bias, joint, scales = self._bias(names), self._join(names), self._kv_scales.get(index)
        name = f"{prefix}.o_proj"
        back = self._weights.matrix(name)
        if scales is not None:
            factors = row_factors(spec, scales)
            joint, back = scale_rows(joint, factors), scaled_output(back, scales)
            bias = None if bias is None else (bias * factors.to(bias.device)).to(bias.dtype)
        qkv = self.packed(
            f"{prefix}.qkv_proj",
            select_rows(joint, self._order),
            None if bias is None else bias[self._order],
        )
        out = self.packed(name, back, self._bias((name,)))
        qk_norm = None
        if spec.family.qk_norm:
            query = self._weights.tensor(f"{prefix}.q_norm.weight").expand(spec.num_heads, -1)
            key = self._weights.tensor(f"{prefix}.k_norm.weight").expand(spec.num_kv_heads, -1)
            norms = torch.cat((query, key))
            if scales is not None:
                norms = scaled_norms(norms, spec, scales)
            # In the order of the projection's rows, which are interleaved as well.
            norms = interleave_pairs(norms, spec.rope.rotary_dim)
            self.nbytes += norms.nbytes
            qk_norm = self._parts.head_norm(norms, spec.norm_eps)
        return Attention(index, self.rotary, self._buffers, qkv, out, qk_norm)

    def _feed_forward(self, prefix: str, names: tuple[str, str, str]) -> FeedForward:
        gate, up, down = names
        joined = self._matrix_names(prefix, "gate_up_proj", (gate, up))
        act = self._spec.activation
        gate_up = self.packed(
            f"{prefix}.gate_up_proj", self._join(joined), self._bias(joined), activation=act
        )
        back = self.linear(f"{prefix}.{down}")
        gated = self._parts.gate(act, back, gate_up)
        self._gates.append(gated)
        return FeedForward(gate_up, back, gated)

    def _matrix_names(self, prefix: str, joined: str, parts: tuple[str, ...]) -> list[str]:
        """Return the names of matrices with a common input, stored fused or separately."""
        # Phi-3 releases store these projections fused.
        is_joined = f"{prefix}.{joined}.weight" in self._weights
        return [f"{prefix}.{part}" for part in ((joined,) if is_joined else parts)]

    def _join(self, names: Sequence[str]) -> Weight:
        return concat_rows([self._weights.matrix(name) for name in names])

    def _bias(self, names: Sequence[str]) -> torch.Tensor | None:
        if f"{names[0]}.bias" not in self._weights:
            return None
        return torch.cat([self._weights.tensor(f"{name}.bias") for name in names])


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
