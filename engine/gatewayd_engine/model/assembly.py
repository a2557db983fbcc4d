"""From named weights to a decoder: which tensors an architecture has, and how they are fused.

``assemble`` runs over any ``Weights``: over the headers of a checkpoint alone (to check names and
shapes before gigabytes are read), over its files, or over a random generator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from gatewayd_engine.model.decoder import Attention, Decoder, Layer
from gatewayd_engine.model.layers import FeedForward, Linear, RMSNorm, activation
from gatewayd_engine.model.moe import MixtureOfExperts
from gatewayd_engine.model.rotary import Rotary
from gatewayd_engine.model.spec import ModelSpec, MoeSpec


class Weights(Protocol):
    """Where tensors come from."""

    num_parameters: int
    """Elements taken so far."""

    def __contains__(self, name: str) -> bool:
        """Whether there is a tensor of that name."""

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor of that name and shape, in the decoder's type and place."""


def assemble(spec: ModelSpec, weights: Weights) -> Decoder:
    """Build the decoder of a spec from named weights."""
    embedding = weights.take("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size)
    rotary = Rotary(spec.rope, spec.max_model_len, embedding.dtype, embedding.device)
    layers = [_layer(spec, weights, rotary, index) for index in range(spec.num_layers)]
    norm = _norm(spec, weights, "model.norm")
    if spec.tie_word_embeddings:
        head = embedding
    else:
        head = weights.take("lm_head.weight", spec.vocab_size, spec.hidden_size)
    return Decoder(spec, embedding, rotary, layers, norm, Linear(head), weights.num_parameters)


def _layer(spec: ModelSpec, weights: Weights, rotary: Rotary, index: int) -> Layer:
    prefix = f"model.layers.{index}"
    attention = _attention(spec, weights, rotary, index, f"{prefix}.self_attn")
    mlp: Callable[[torch.Tensor], torch.Tensor]
    if spec.moe is not None and spec.moe.layers[index]:
        mlp = _experts(spec, spec.moe, weights, prefix)
    else:
        mlp = _feed_forward(spec, weights, f"{prefix}.mlp")
    has_post_norms = spec.family.post_norms
    # With norms on both sides, "post_attention" is what its name says; without, it is the one
    # before the feed-forward part.
    before_mlp = "pre_feedforward_layernorm" if has_post_norms else "post_attention_layernorm"
    return Layer(
        attention,
        mlp,
        before_attention=_norm(spec, weights, f"{prefix}.input_layernorm"),
        before_mlp=_norm(spec, weights, f"{prefix}.{before_mlp}"),
        after_attention=_norm(spec, weights, f"{prefix}.post_attention_layernorm")
        if has_post_norms
        else None,
        after_mlp=_norm(spec, weights, f"{prefix}.post_feedforward_layernorm")
        if has_post_norms
        else None,
    )


def _norm(spec: ModelSpec, weights: Weights, name: str) -> RMSNorm:
    weight = weights.take(f"{name}.weight", spec.hidden_size)
    return RMSNorm(weight, spec.norm_eps, offset=float(spec.family.norm_offset))


def _attention(
    spec: ModelSpec, weights: Weights, rotary: Rotary, index: int, prefix: str
) -> Attention:
    sizes = {"q_proj": spec.num_heads, "k_proj": spec.num_kv_heads, "v_proj": spec.num_kv_heads}
    rows = {name: heads * spec.head_dim for name, heads in sizes.items()}
    qkv = _joined(weights, prefix, "qkv_proj", rows, spec.hidden_size, spec.qkv_bias)
    out = _linear(
        weights,
        f"{prefix}.o_proj",
        spec.hidden_size,
        spec.num_heads * spec.head_dim,
        spec.output_bias,
    )
    qk_norm = None
    if spec.family.qk_norm:
        query = weights.take(f"{prefix}.q_norm.weight", spec.head_dim)
        key = weights.take(f"{prefix}.k_norm.weight", spec.head_dim)
        both = [query.expand(spec.num_heads, -1), key.expand(spec.num_kv_heads, -1)]
        qk_norm = RMSNorm(torch.cat(both), spec.norm_eps)
    return Attention(index, spec, rotary, qkv, out, qk_norm)


def _feed_forward(spec: ModelSpec, weights: Weights, prefix: str) -> FeedForward:
    hidden, inner, has_bias = spec.hidden_size, spec.intermediate_size, spec.mlp_bias
    rows = {"gate_proj": inner, "up_proj": inner}
    return FeedForward(
        _joined(weights, prefix, "gate_up_proj", rows, hidden, has_bias),
        _linear(weights, f"{prefix}.down_proj", hidden, inner, has_bias),
        activation(spec.activation),
    )


def _experts(
    spec: ModelSpec, moe: MoeSpec, weights: Weights, layer_prefix: str
) -> MixtureOfExperts:
    """Experts one by one as released, or stacked as transformers 5 holds them."""
    hidden, inner = spec.hidden_size, moe.intermediate_size
    is_mixtral = spec.family.experts == "mixtral"
    prefix = f"{layer_prefix}.mlp"
    if is_mixtral and f"{prefix}.gate.weight" not in weights:
        prefix = f"{layer_prefix}.block_sparse_moe"
    gate, up, down = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    router = _linear(weights, f"{prefix}.gate", moe.num_experts, hidden, False)
    pairs: list[tuple[Linear, Linear]]
    if f"{prefix}.experts.gate_up_proj" in weights:
        gate_ups = weights.take(
            f"{prefix}.experts.gate_up_proj", moe.num_experts, 2 * inner, hidden
        )
        downs = weights.take(f"{prefix}.experts.down_proj", moe.num_experts, hidden, inner)
        pairs = [(Linear(one), Linear(other)) for one, other in zip(gate_ups, downs, strict=True)]
    else:
        names = [f"{prefix}.experts.{number}" for number in range(moe.num_experts)]
        rows = {gate: inner, up: inner}
        pairs = [
            (
                _joined(weights, name, "gate_up_proj", rows, hidden, False),
                _linear(weights, f"{name}.{down}", hidden, inner, False),
            )
            for name in names
        ]
    act = activation(spec.activation)
    experts = [FeedForward(gate_up, down_, act) for gate_up, down_ in pairs]
    return MixtureOfExperts(router, experts, moe.top_k, moe.renormalise)


def _linear(weights: Weights, name: str, rows: int, columns: int, has_bias: bool) -> Linear:
    weight = weights.take(f"{name}.weight", rows, columns)
    return Linear(weight, weights.take(f"{name}.bias", rows) if has_bias else None)


def _joined(
    weights: Weights, prefix: str, joined: str, rows: dict[str, int], columns: int, has_bias: bool
) -> Linear:
    """One matrix of several that see the same input, stored joined or apart."""
    if f"{prefix}.{joined}.weight" in weights:
        return _linear(weights, f"{prefix}.{joined}", sum(rows.values()), columns, has_bias)
    parts = [weights.take(f"{prefix}.{name}.weight", size, columns) for name, size in rows.items()]
    biases = [
        weights.take(f"{prefix}.{name}.bias", size) for name, size in rows.items() if has_bias
    ]
    return Linear(torch.cat(parts), torch.cat(biases) if has_bias else None)
