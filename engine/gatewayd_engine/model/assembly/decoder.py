"""Building of a decoder from named weights, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from gatewayd_engine.model.assembly.attention import AttentionBuilder
from gatewayd_engine.model.assembly.latent_attention import LatentAttentionBuilder
from gatewayd_engine.model.assembly.linears import LinearBuilder, Quantize, Weights
from gatewayd_engine.model.assembly.mlp import MlpBuilder
from gatewayd_engine.model.config.moe import SharedExpert
from gatewayd_engine.model.decoder import Decoder, DecoderLayer, Mlp
from gatewayd_engine.model.embedding_table import EmbeddingTable, FloatTable, embedding_table
from gatewayd_engine.model.layers import FeedForward, LinearOp, Unnormed
from gatewayd_engine.model.linears.select_gpu import DenseGpuLinear
from gatewayd_engine.model.loading.kv_scales import KvScales
from gatewayd_engine.model.loading.layout import sinks_names
from gatewayd_engine.model.parts import LayerParts, Norm
from gatewayd_engine.model.rotary_embedding import Rotary
from gatewayd_engine.model.router import Router, SharedGate
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_engine.model.weights import device_of

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
    linears = builder.linears
    # Before the layers: a head that is the table is packed from its floats, which are not kept.
    tied = linears.packed(_HEAD, table) if spec.tie_word_embeddings else None
    if isinstance(table, torch.Tensor) and _is_shared(table, tied):
        # In memory once, and counted with the head.
        embedding: EmbeddingTable = FloatTable(table, weights.dtype)
    else:
        embedding = embedding_table(table, weights.dtype)
        linears.nbytes += embedding.nbytes
    del table
    layers = [builder.layer(index) for index in range(spec.num_layers)]
    norm = linears.norm("model.norm")
    head = linears.linear(_HEAD) if tied is None else tied
    sinks = [weights.float32(name) for name in sinks_names(spec)] or None
    linears.nbytes += sum(scores.nbytes for scores in sinks or ())
    # GPU kernels add in whatever order is fastest: batch invariance is guaranteed on CPUs only.
    rounds_inputs = embedding.device.type == "cpu" and builder.set_batch_invariant(head)
    return Decoder(
        spec,
        embedding,
        builder.rotaries,
        layers,
        norm,
        head,
        weights.num_parameters,
        linears.nbytes,
        rounds_inputs=rounds_inputs,
        is_capturable=builder.is_capturable,
        sinks=sinks,
    )


def _is_shared(table: torch.Tensor, head: LinearOp | None) -> bool:
    return isinstance(head, DenseGpuLinear) and head.shares_storage(table)


class LayerBuilder:
    """Builder of decoder layers; see ``assemble`` for the arguments.

    Attributes:
        linears: builder of the matrices and norms.
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
        self.linears = LinearBuilder(spec, weights, parts, quantize, device)
        self._spec = spec
        self._attention = (
            AttentionBuilder(spec, self.linears, parts, kv_scales)
            if spec.latent is None
            else LatentAttentionBuilder(spec, spec.latent, self.linears, parts, kv_scales)
        )
        self._mlps = MlpBuilder(spec, self.linears, parts)

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        """Rotary embedding of each layer, the same object where settings are equal."""
        return self._attention.rotaries

    @property
    def is_capturable(self) -> bool:
        """See ``Decoder``; for the layers built so far."""
        return self._mlps.is_capturable

    def layer(self, index: int, mlp: Mlp | None = None) -> DecoderLayer:
        """Build one layer, with ``mlp`` instead of its own feed-forward part if given."""
        spec, prefix = self._spec, f"model.layers.{index}"
        attention = self._attention.attention(index)
        mlp = self._mlps.mlp(index) if mlp is None else mlp
        # Parts before norms: a norm may produce the form that the matrix after it reads. Norms
        # after a part feed the residual stream instead.
        norms = spec.family.norms
        return DecoderLayer(
            attention,
            mlp,
            self._norm(prefix, norms.before_attention, attention.entry) or Unnormed(),
            self._norm(prefix, norms.before_mlp, mlp.entry) or Unnormed(),
            self._norm(prefix, norms.after_attention),
            self._norm(prefix, norms.after_mlp),
        )

    def _norm(self, prefix: str, name: str | None, entry: LinearOp | None = None) -> Norm | None:
        return None if name is None else self.linears.norm(f"{prefix}.{name}", entry)

    def router(self, index: int) -> Router:
        """Build the expert router of a layer; see ``MlpBuilder.router``."""
        return self._mlps.router(index)

    def expert(self, index: int, number: int) -> FeedForward:
        """Build one of the experts of a layer."""
        return self._mlps.expert(index, number)

    def norm_before_mlp(self, index: int) -> Norm:
        """Build the norm of the input of a layer's feed-forward part."""
        name = self._spec.family.norms.before_mlp
        return self._norm(f"model.layers.{index}", name) or Unnormed()

    def norm_after_mlp(self, index: int) -> Norm | None:
        """Build the norm of the output of a layer's feed-forward part; None for none."""
        return self._norm(f"model.layers.{index}", self._spec.family.norms.after_mlp)

    def shared_expert(self, index: int, shared: SharedExpert) -> FeedForward:
        """Build the shared expert of a layer."""
        return self._mlps.shared_expert(index, shared)

    def shared_gate(self, index: int, shared: SharedExpert) -> SharedGate | None:
        """Build the gate of a layer's shared expert; see ``MlpBuilder.shared_gate``."""
        return self._mlps.shared_gate(index, shared)

    def set_batch_invariant(self, head: LinearOp) -> bool:
        """Make float operations batch-invariant; see ``LinearBuilder.set_batch_invariant``."""
        others = (*self._attention.float_parts, *self._mlps.gates)
        return self.linears.set_batch_invariant(head, others)
