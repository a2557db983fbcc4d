"""From named weights to a decoder: what is fused, and what goes where."""

from __future__ import annotations

from typing import Protocol

import torch

from gatewayd_engine.model.decoder import Attention, Decoder, Layer, Mlp
from gatewayd_engine.model.heads import HeadBuffers
from gatewayd_engine.model.layers import FeedForward, Linear
from gatewayd_engine.model.layout import STACKED, expert_parts, expert_prefix, layer_norms
from gatewayd_engine.model.moe import MixtureOfExperts
from gatewayd_engine.model.parts import Norm, Parts
from gatewayd_engine.model.rotary import Rotary, side_by_side
from gatewayd_engine.model.spec import ModelSpec, MoeSpec


class Weights(Protocol):
    """The tensors of a ``layout``, from wherever they come."""

    num_parameters: int
    """Elements of all of them."""

    def __contains__(self, name: object) -> bool:
        """Whether the layout has a tensor of that name."""

    def take(self, name: str) -> torch.Tensor:
        """The tensor of that name, in the decoder's type and place."""


def assemble(spec: ModelSpec, weights: Weights, parts: Parts) -> Decoder:
    """Build the decoder of a spec from named weights, of the parts that suit where they are."""
    embedding = weights.take("model.embed_tokens.weight")
    rotary = Rotary(spec.rope, spec.max_model_len, embedding.device)
    buffers = HeadBuffers(spec, rotary)
    layers = [
        _layer(spec, weights, parts, rotary, buffers, index) for index in range(spec.num_layers)
    ]
    norm = _norm(spec, weights, parts, "model.norm")
    head = embedding if spec.tie_word_embeddings else weights.take("lm_head.weight")
    return Decoder(
        spec, embedding, rotary, layers, norm, parts.linear(head), weights.num_parameters
    )


def _layer(
    spec: ModelSpec,
    weights: Weights,
    parts: Parts,
    rotary: Rotary,
    buffers: HeadBuffers,
    index: int,
) -> Layer:
    prefix = f"model.layers.{index}"
    attention = _attention(spec, weights, parts, rotary, buffers, index, f"{prefix}.self_attn")
    mlp: Mlp
    if spec.moe is not None and spec.moe.layers[index]:
        mlp = _experts(spec, spec.moe, weights, parts, expert_prefix(spec, prefix, weights))
    else:
        gate_up = _joined(weights, parts, f"{prefix}.mlp", "gate_up_proj", ("gate_proj", "up_proj"))
        down = _linear(weights, parts, f"{prefix}.mlp.down_proj")
        mlp = FeedForward(gate_up, down, parts.gate(spec.activation))
    before_attention, before_mlp, *after = (
        _norm(spec, weights, parts, f"{prefix}.{name}") for name in layer_norms(spec)
    )
    after_attention, after_mlp = after or (None, None)
    return Layer(attention, mlp, before_attention, before_mlp, after_attention, after_mlp)


def _norm(spec: ModelSpec, weights: Weights, parts: Parts, name: str) -> Norm:
    weight = weights.take(f"{name}.weight")
    return parts.norm(weight, spec.norm_eps, float(spec.family.norm_offset))


def _attention(
    spec: ModelSpec,
    weights: Weights,
    parts: Parts,
    rotary: Rotary,
    buffers: HeadBuffers,
    index: int,
    prefix: str,
) -> Attention:
    weight, bias = _join(weights, prefix, "qkv_proj", ("q_proj", "k_proj", "v_proj"))
    qkv = parts.linear(_reorder(spec, weight), None if bias is None else _reorder(spec, bias))
    out = _linear(weights, parts, f"{prefix}.o_proj")
    qk_norm = None
    if spec.family.qk_norm:
        query = weights.take(f"{prefix}.q_norm.weight").expand(spec.num_heads, -1)
        key = weights.take(f"{prefix}.k_norm.weight").expand(spec.num_kv_heads, -1)
        norms = side_by_side(torch.cat((query, key)), spec.rope.rotary_dim)
        qk_norm = parts.head_norm(norms, spec.norm_eps)
    return Attention(index, rotary, buffers, qkv, out, qk_norm)


def _reorder(spec: ModelSpec, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a joined projection as the rotation wants them; those of values stay."""
    heads = torch.unflatten(rows, 0, (-1, spec.head_dim))
    rotated = spec.num_heads + spec.num_kv_heads
    turned = side_by_side(heads[:rotated], spec.rope.rotary_dim)
    return torch.cat((turned, heads[rotated:])).flatten(0, 1)


def _experts(
    spec: ModelSpec, moe: MoeSpec, weights: Weights, parts: Parts, prefix: str
) -> MixtureOfExperts:
    """Experts one by one as released, or stacked as transformers 5 holds them."""
    pairs: list[tuple[Linear, Linear]]
    if f"{prefix}.{STACKED}" in weights:
        gate_ups = weights.take(f"{prefix}.{STACKED}")
        downs = weights.take(f"{prefix}.experts.down_proj")
        pairs = [
            (parts.linear(one), parts.linear(other))
            for one, other in zip(gate_ups, downs, strict=True)
        ]
    else:
        gate, up, down = expert_parts(spec)
        names = [f"{prefix}.experts.{number}" for number in range(moe.num_experts)]
        pairs = [
            (
                _joined(weights, parts, name, "gate_up_proj", (gate, up)),
                _linear(weights, parts, f"{name}.{down}"),
            )
            for name in names
        ]
    gated = parts.gate(spec.activation)
    experts = [FeedForward(gate_up, down, gated) for gate_up, down in pairs]
    router = _linear(weights, parts, f"{prefix}.gate")
    return MixtureOfExperts(router, experts, moe.top_k, moe.renormalise)


def _linear(weights: Weights, parts: Parts, name: str) -> Linear:
    bias = f"{name}.bias"
    return parts.linear(
        weights.take(f"{name}.weight"), weights.take(bias) if bias in weights else None
    )


def _joined(
    weights: Weights, parts: Parts, prefix: str, joined: str, names: tuple[str, ...]
) -> Linear:
    return parts.linear(*_join(weights, prefix, joined, names))


def _join(
    weights: Weights, prefix: str, joined: str, parts: tuple[str, ...]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of several matrices that see the same input, stored joined or apart."""
    if f"{prefix}.{joined}.weight" in weights:
        parts = (joined,)
    names = [f"{prefix}.{part}" for part in parts]
    weight = torch.cat([weights.take(f"{name}.weight") for name in names])
    if f"{names[0]}.bias" not in weights:
        return weight, None
    return weight, torch.cat([weights.take(f"{name}.bias") for name in names])
