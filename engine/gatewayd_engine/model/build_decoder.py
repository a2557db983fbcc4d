"""From named weights to a decoder: what is fused, and what goes where."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import torch

from gatewayd_engine.model.batch_invariance import Unsteady
from gatewayd_engine.model.decoder import Attention, Decoder, DecoderLayer, Mlp
from gatewayd_engine.model.layers import FeedForward, LinearOp
from gatewayd_engine.model.linears.expert_stacks import Stack, told
from gatewayd_engine.model.linears.plugin_matmul import UnfitProduct
from gatewayd_engine.model.linears.select_gpu import Apart
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
from gatewayd_engine.model.rotary_embedding import Rotary, side_by_side
from gatewayd_engine.model.spec import ModelSpec, MoeSpec
from gatewayd_engine.model.weights import dense, in_type, joined, placed, rows, times
from gatewayd_hooks.quantization import Matrix, Weight

_log = logging.getLogger(__name__)


class Weights(Protocol):
    """The tensors of a ``layout``, from wherever they come."""

    num_parameters: int
    """Elements of all of them."""
    dtype: torch.dtype
    """Of the decoder."""

    def __contains__(self, name: object) -> bool:
        """Whether the layout has a tensor of that name."""

    def take(self, name: str) -> torch.Tensor:
        """The tensor of that name, in the decoder's type and place."""

    def matrix(self, name: str) -> Weight:
        """The same of a matrix, by its name without ``.weight``; it may be of few bits."""


Quantize = Callable[[Matrix, torch.Tensor], Weight]
"""Makes a weight of few bits of a float one, or leaves it as it is."""
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

    One matrix after the other is taken, joined with those of the same input, quantized and packed:
    beside what is packed already there is never more than one of them.

    Args:
        spec: of the model.
        weights: its tensors.
        parts: that suit where they are.
        quantize: asked for each matrix of floats but the embedding and routers of experts, whose
            few numbers decide much; None for what they are.
        kv_scales: of keys and values, by layer, that its weights take up.
    """
    table = weights.matrix(_EMBEDDING)
    embedding = dense(table).to(weights.dtype)
    builder = LayerBuilder(spec, weights, parts, quantize, embedding.device, kv_scales or {})
    layers = [builder.layer(index) for index in range(spec.num_layers)]
    norm = builder.norm("model.norm")
    head = builder.packed(_HEAD, table) if spec.tie_word_embeddings else builder.linear(_HEAD)
    if isinstance(head, Apart) and head.is_of(embedding):
        builder.nbytes -= embedding.nbytes
    # Kernels of a device add in whatever order is fastest there; nothing is promised of their bits.
    rounds_inputs = embedding.device.type == "cpu" and builder.steady(head)
    return Decoder(
        spec,
        embedding,
        builder.rotary,
        layers,
        norm,
        head,
        weights.num_parameters,
        embedding.nbytes + builder.nbytes,
        rounds_inputs=rounds_inputs,
        is_capturable=builder.is_capturable,
    )


class LayerBuilder:
    """Makes the layers of a decoder; ``assemble`` says of what.

    Attributes:
        rotary: their rotations.
        nbytes: that the weights made so far take.
        is_capturable: see ``Decoder``, of the layers made so far.
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
        """One layer, with another feed-forward part in the place of its own if there is one."""
        spec, prefix = self._spec, f"model.layers.{index}"
        attention = self._attention(index, f"{prefix}.self_attn")
        mlp = self._mlp(index) if mlp is None else mlp
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
        """What chooses among the experts of a layer.

        Raises:
            ValueError: there are none.
        """
        moe = self._spec.moe
        if moe is None:
            raise ValueError(f"layer {index} has no experts")
        gate = f"{self._expert_prefix(index)}.gate"
        scores = self.packed(gate, self._weights.matrix(gate), self._bias((gate,)), is_kept=True)
        return Router(scores, moe.top_k, renormalise=moe.renormalise)

    def expert(self, index: int, number: int) -> FeedForward:
        """One of the experts of a layer."""
        prefix = f"{self._expert_prefix(index)}.experts.{number}"
        return self._feed_forward(prefix, expert_parts(self._spec))

    def norm(self, name: str, entry: LinearOp | None = None) -> Norm:
        """A norm of the residual stream, before one matrix or several parts."""
        weight = self._weights.take(f"{name}.weight")
        self.nbytes += weight.nbytes
        offset = float(self._spec.family.norm_offset)
        return self._parts.norm(weight, self._spec.norm_eps, offset, entry)

    def linear(self, name: str) -> LinearOp:
        """A matrix with what its bias may be."""
        return self.packed(name, self._weights.matrix(name), self._bias((name,)))

    def packed(
        self, name: str, weight: Weight, bias: torch.Tensor | None = None, *, is_kept: bool = False
    ) -> LinearOp:
        """A weight in its place, quantized before unless it is to be kept as it is.

        Raises:
            LoadError: a plugin fails to multiply it.
        """
        if not is_kept:
            weight = self._quantized(name, weight)
        return self._linear(name, self._settled(weight), bias)

    def _quantized(self, name: str, weight: Weight) -> Weight:
        if isinstance(weight, torch.Tensor) and self._quantize is not None:
            return self._quantize(Matrix(name, *weight.shape), weight.float())
        return weight

    def _settled(self, weight: Weight) -> Weight:
        """A weight where it is multiplied, with floats of the decoder's type."""
        return in_type(placed(weight, self._order.device), self._weights.dtype)

    def _linear(self, name: str, weight: Weight, bias: torch.Tensor | None) -> LinearOp:
        try:
            made = self._parts.linear(weight, bias, self._weights.dtype)
        except UnfitProduct as error:
            raise LoadError(f"{name}: {error}") from error
        self.nbytes += made.nbytes
        self._linears.append(made)
        return made

    def steady(self, head: LinearOp) -> bool:
        """Whether a product rounds what it is given; all that is before one is steady then."""
        if not any(linear.rounds_inputs for linear in self._linears):
            return False
        # What a head of floats makes is rounded by nobody.
        linears = [linear for linear in self._linears if linear is not head]
        for part in (self.rotary, *self._gates, *linears):
            if isinstance(part, Unsteady):
                part.is_steady = True
        return True

    def _mlp(self, index: int) -> Mlp:
        moe = self._spec.moe
        if moe is None or not moe.layers[index]:
            names = ("gate_proj", "up_proj", "down_proj")
            return self._feed_forward(f"model.layers.{index}.mlp", names)
        grouped = self._grouped(index, moe)
        if grouped is not None:
            return grouped
        self.is_capturable = False
        experts = [self.expert(index, number) for number in range(moe.num_experts)]
        return MixtureOfExperts(self.router(index), experts)

    def _grouped(self, index: int, moe: MoeSpec) -> Mlp | None:
        """The experts of a layer, multiplied at once; None if these parts cannot."""
        parts, experts = self._parts.experts, moe.num_experts
        if parts is None:
            return None
        hidden, inner = self._spec.hidden_size, moe.intermediate_size
        sizes = ((2 * inner, hidden), (hidden, inner))
        stacks: list[Stack] = []
        for number in range(experts):
            for place, weight in enumerate(self._expert_weights(index, number)):
                form = parts.form(weight, self._weights.dtype)
                if form is not None and not number:
                    stacks.append(parts.stack(form, experts, *sizes[place]))
                if form is None or not stacks[place].put(number, form):
                    what = told(weight) if form is None else "of several formats"
                    self._tell_apart(index, what)
                    return None
        gate_up, down = stacks
        self.nbytes += gate_up.nbytes + down.nbytes
        name, dtype = self._spec.activation, self._weights.dtype
        return parts.mixture(self.router(index), gate_up, down, name, dtype)

    def _expert_weights(self, index: int, number: int) -> Iterator[Weight]:
        """The matrices of an expert, where they are multiplied; one after the other."""
        prefix = f"{self._expert_prefix(index)}.experts.{number}"
        gate, up, down = expert_parts(self._spec)
        joined = self._apart(prefix, "gate_up_proj", (gate, up))
        for name, names in (("gate_up_proj", joined), (down, [f"{prefix}.{down}"])):
            yield self._settled(self._quantized(f"{prefix}.{name}", self._join(names)))

    def _tell_apart(self, index: int, what: str) -> None:
        """Say once in the log why experts are multiplied one by one."""
        if self.is_capturable:
            _log.warning(
                "experts of layer %d are %s: experts are multiplied one by one, the host waits for"
                " the device in each of their layers, and steps are not captured",
                *(index, what),
            )

    def _expert_prefix(self, index: int) -> str:
        return expert_prefix(self._spec, f"model.layers.{index}", self._weights)

    def _attention(self, index: int, prefix: str) -> Attention:
        spec = self._spec
        names = self._apart(prefix, "qkv_proj", ("q_proj", "k_proj", "v_proj"))
        bias, joint, scales = self._bias(names), self._join(names), self._kv_scales.get(index)
        name = f"{prefix}.o_proj"
        back = self._weights.matrix(name)
        if scales is not None:
            factors = row_factors(spec, scales)
            joint, back = times(joint, factors), scaled_output(back, scales)
            bias = None if bias is None else (bias * factors.to(bias.device)).to(bias.dtype)
        qkv = self.packed(
            f"{prefix}.qkv_proj",
            rows(joint, self._order),
            None if bias is None else bias[self._order],
        )
        out = self.packed(name, back, self._bias((name,)))
        qk_norm = None
        if spec.family.qk_norm:
            query = self._weights.take(f"{prefix}.q_norm.weight").expand(spec.num_heads, -1)
            key = self._weights.take(f"{prefix}.k_norm.weight").expand(spec.num_kv_heads, -1)
            norms = torch.cat((query, key))
            if scales is not None:
                norms = scaled_norms(norms, spec, scales)
            norms = side_by_side(norms, spec.rope.rotary_dim)
            self.nbytes += norms.nbytes
            qk_norm = self._parts.head_norm(norms, spec.norm_eps)
        return Attention(index, self.rotary, self._buffers, qkv, out, qk_norm)

    def _feed_forward(self, prefix: str, names: tuple[str, str, str]) -> FeedForward:
        gate, up, down = names
        joined = self._apart(prefix, "gate_up_proj", (gate, up))
        gate_up = self.packed(f"{prefix}.gate_up_proj", self._join(joined), self._bias(joined))
        back = self.linear(f"{prefix}.{down}")
        gated = self._parts.gate(self._spec.activation, back, gate_up)
        self._gates.append(gated)
        return FeedForward(gate_up, back, gated)

    def _apart(self, prefix: str, joined: str, parts: tuple[str, ...]) -> list[str]:
        """Names of the matrices of one input, which are stored joined or apart."""
        is_joined = f"{prefix}.{joined}.weight" in self._weights
        return [f"{prefix}.{part}" for part in ((joined,) if is_joined else parts)]

    def _join(self, names: Sequence[str]) -> Weight:
        return joined([self._weights.matrix(name) for name in names])

    def _bias(self, names: Sequence[str]) -> torch.Tensor | None:
        if f"{names[0]}.bias" not in self._weights:
            return None
        return torch.cat([self._weights.take(f"{name}.bias") for name in names])


def _order(spec: ModelSpec, device: torch.device) -> torch.Tensor:
    """Rows of a joined projection as the rotation wants them, int64; those of values stay."""
    rotated = spec.num_heads + spec.num_kv_heads
    heads = torch.arange((rotated + spec.num_kv_heads) * spec.head_dim, device=device)
    heads = torch.unflatten(heads, 0, (-1, spec.head_dim))
    turned = side_by_side(heads[:rotated], spec.rope.rotary_dim)
    return torch.cat((turned, heads[rotated:])).flatten()
