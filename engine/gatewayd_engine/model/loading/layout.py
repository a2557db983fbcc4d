"""Names and shapes of the tensors in a model's checkpoint. Imports no torch."""

from __future__ import annotations

from collections.abc import Container

from gatewayd_engine.model.config.latent import LatentSpec
from gatewayd_engine.model.config.moe import MoeSpec
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_hooks.quantization import Matrix

Shapes = dict[str, tuple[int, ...]]

CORRECTION = "e_score_correction_bias"
"""Name, within a router, of what is added to scores for the choice of experts."""
_WEIGHT = ".weight"


def layout(spec: ModelSpec, present: Container[str] = ()) -> Shapes:
    """Return the names and shapes of all tensors that a model needs.

    Args:
        spec: of the model.
        present: names of the stored tensors. Some tools store projections fused, others
            separately; the fused name is expected where it is present.
    """
    shapes: Shapes = {
        "model.embed_tokens.weight": (spec.vocab_size, spec.hidden_size),
        "model.norm.weight": (spec.hidden_size,),
    }
    if not spec.tie_word_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, spec.hidden_size)
    shapes |= dict.fromkeys(sinks_names(spec), (spec.num_heads,))
    for index in range(spec.num_layers):
        prefix = f"model.layers.{index}"
        for norm in spec.family.norms.names:
            shapes[f"{prefix}.{norm}.weight"] = (spec.hidden_size,)
        if spec.latent is None:
            shapes |= _attention(spec, f"{prefix}.self_attn", present)
        else:
            shapes |= _latent_attention(spec, spec.latent, f"{prefix}.self_attn", present)
        if spec.moe is not None and spec.moe.layers[index]:
            shapes |= _experts(spec, spec.moe, expert_prefix(spec, prefix, present), present)
        else:
            mlp = mlp_prefix(spec, prefix)
            shapes |= _feed_forward(spec, mlp, spec.intermediate_size, present)
    return shapes


def matrices(shapes: Shapes) -> dict[str, Matrix]:
    """Return the matrices of a layout by tensor name, as quantizers address them."""
    return {
        name: Matrix(name.removesuffix(_WEIGHT), *shape)
        for name, shape in shapes.items()
        if name.endswith(_WEIGHT) and len(shape) == 2
    }


def mlp_prefix(spec: ModelSpec, layer: str) -> str:
    """Return the name prefix of a layer's feed-forward part, which differs for Llama 4."""
    return f"{layer}.{'feed_forward' if spec.family.experts == 'llama4' else 'mlp'}"


def expert_prefix(spec: ModelSpec, layer: str, present: Container[str]) -> str:
    """Return the name prefix of a layer's router and experts, which differs for Mixtral."""
    # Releases name Mixtral's experts differently; the stored tensors decide.
    if spec.family.experts == "mixtral" and f"{layer}.mlp.gate.weight" not in present:
        return f"{layer}.block_sparse_moe"
    return mlp_prefix(spec, layer)


def sinks_names(spec: ModelSpec) -> list[str]:
    """Return the names of the layers' attention sinks; empty where they have none."""
    layers = range(spec.num_layers) if spec.family.has_sinks else ()
    return [f"model.layers.{index}.self_attn.sinks" for index in layers]


def router_name(spec: ModelSpec, prefix: str) -> str:
    """Return the name of the router of a layer, from the prefix of its experts."""
    return f"{prefix}.{'router' if spec.family.experts in ('gpt_oss', 'llama4') else 'gate'}"


def expert_parts(spec: ModelSpec) -> tuple[str, str, str]:
    """Return the names of the gate, up and down projections of an expert."""
    is_mixtral = spec.family.experts == "mixtral"
    return ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")


def _attention(spec: ModelSpec, prefix: str, present: Container[str]) -> Shapes:
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    rows = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    shapes = _joined(prefix, "qkv_proj", rows, spec.hidden_size, spec.qkv_bias, present)
    shapes |= _linear(f"{prefix}.o_proj", spec.hidden_size, queries, spec.output_bias)
    if spec.family.qk_norm in ("head", "projection"):
        is_head = spec.family.qk_norm == "head"
        shapes[f"{prefix}.q_norm.weight"] = (spec.head_dim if is_head else queries,)
        shapes[f"{prefix}.k_norm.weight"] = (spec.head_dim if is_head else keys,)
    return shapes


def _latent_attention(
    spec: ModelSpec, latent: LatentSpec, prefix: str, present: Container[str]
) -> Shapes:
    hidden, queries = spec.hidden_size, spec.num_heads * latent.key_dim
    if latent.query_rank is None:
        shapes = _linear(f"{prefix}.q_proj", queries, hidden, False)
    else:
        shapes = _linear(f"{prefix}.q_a_proj", latent.query_rank, hidden, spec.qkv_bias)
        shapes[f"{prefix}.q_a_layernorm.weight"] = (latent.query_rank,)
        shapes |= _linear(f"{prefix}.q_b_proj", queries, latent.query_rank, False)
    shapes |= _linear(f"{prefix}.kv_a_proj_with_mqa", latent.record_dim, hidden, spec.qkv_bias)
    shapes[f"{prefix}.kv_a_layernorm.weight"] = (latent.rank,)
    keys, values = spec.num_heads * latent.nope_dim, spec.num_heads * latent.value_dim
    if f"{prefix}.k_b_proj.weight" in present:
        # GGUF files have the two apart, and that of each head's keys transposed.
        shapes |= _linear(
            f"{prefix}.k_b_proj", spec.num_heads * latent.rank, latent.nope_dim, False
        )
        shapes |= _linear(f"{prefix}.v_b_proj", values, latent.rank, False)
    else:
        shapes |= _linear(f"{prefix}.kv_b_proj", keys + values, latent.rank, False)
    return shapes | _linear(f"{prefix}.o_proj", hidden, values, spec.output_bias)


def _feed_forward(spec: ModelSpec, prefix: str, inner: int, present: Container[str]) -> Shapes:
    hidden = spec.hidden_size
    rows = {"gate_proj": inner, "up_proj": inner}
    shapes = _joined(prefix, "gate_up_proj", rows, hidden, spec.mlp_bias, present)
    return shapes | _linear(f"{prefix}.down_proj", hidden, inner, spec.mlp_bias)


def _experts(spec: ModelSpec, moe: MoeSpec, prefix: str, present: Container[str]) -> Shapes:
    hidden, inner, router = spec.hidden_size, moe.intermediate_size, router_name(spec, prefix)
    shapes = _linear(router, moe.num_experts, hidden, moe.has_bias)
    if moe.routing.has_correction:
        shapes[f"{router}.{CORRECTION}"] = (moe.num_experts,)
    if (shared := moe.shared) is not None:
        size = shared.intermediate_size
        shapes |= _feed_forward(spec, f"{prefix}.{shared.name}", size, present)
        if shared.gate is not None:
            shapes |= _linear(f"{prefix}.{shared.gate}", 1, hidden, False)
    gate, up, down = expert_parts(spec)
    for number in range(moe.num_experts):
        for name in (gate, up):
            shapes |= _linear(f"{prefix}.experts.{number}.{name}", inner, hidden, moe.has_bias)
        shapes |= _linear(f"{prefix}.experts.{number}.{down}", hidden, inner, moe.has_bias)
    return shapes


def _joined(
    prefix: str,
    joined: str,
    rows: dict[str, int],
    columns: int,
    has_bias: bool,
    present: Container[str],
) -> Shapes:
    # The stored tensors decide, not the architecture: some tools split or fuse projections.
    if f"{prefix}.{joined}.weight" in present:
        return _linear(f"{prefix}.{joined}", sum(rows.values()), columns, has_bias)
    shapes: Shapes = {}
    for name, size in rows.items():
        shapes |= _linear(f"{prefix}.{name}", size, columns, has_bias)
    return shapes


def _linear(name: str, rows: int, columns: int, has_bias: bool) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (rows, columns)}
    if has_bias:
        shapes[f"{name}.bias"] = (rows,)
    return shapes
