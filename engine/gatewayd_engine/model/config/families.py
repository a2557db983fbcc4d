"""Supported architectures and their differences from Llama."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Experts = Literal[
    "mixtral", "qwen", "qwen_shared", "deepseek_v2", "deepseek_v3", "gpt_oss", "llama4", "olmoe"
]
"""Schemes of routing and of the names of experts; see ``config.moe``."""


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """Names of a layer's norms; None for none.

    Attributes:
        before_attention, before_mlp: of the parts' inputs.
        after_attention, after_mlp: of their outputs, before these are added to the residual stream.
    """

    before_attention: str | None = "input_layernorm"
    before_mlp: str | None = "post_attention_layernorm"
    after_attention: str | None = None
    after_mlp: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order of computation."""
        both = (self.before_attention, self.after_attention, self.before_mlp, self.after_mlp)
        return tuple(name for name in both if name is not None)


_AROUND = LayerNorms(
    before_mlp="pre_feedforward_layernorm",
    after_attention="post_attention_layernorm",
    after_mlp="post_feedforward_layernorm",
)
_AFTER = LayerNorms(
    before_attention=None,
    before_mlp=None,
    after_attention="post_attention_layernorm",
    after_mlp="post_feedforward_layernorm",
)
_GLM = LayerNorms(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")


@dataclass(frozen=True, slots=True)
class Family:
    """Differences from Llama fixed by the architecture; the rest is read from config.json.

    Attributes:
        biases: which attention projections have one: all or none as ``attention_bias`` says,
            query, key and value only unless ``qkv_bias`` is false, these as ``attention_bias``
            says, all unless it is false, or none.
        mlp_bias: whether config.json may ask for biases in the feed-forward part.
        qk_norm: what is normalised before rotary: each head of queries and keys, all queries and
            all keys of a token together, each head without a weight in the layers that have a
            rotary embedding, or nothing.
        norms: of each layer.
        norm_offset: norm weights are stored as their difference from one.
        scaled_embedding: embeddings are multiplied by the root of the hidden size.
        windows: which layers have a sliding window: none, all where ``sliding_window`` is set,
            all where ``use_sliding_window`` is, those that ``layer_types`` or
            ``max_window_layers`` name (from there on, or every other one before it), all but every
            ``full_interval``-th one, or those without rotary embedding where ``use_sliding_window``
            is set. "rotated": those with rotary embedding attend within chunks of
            ``attention_chunk_size``.
        window: the window when config.json says nothing; None for none.
        full_interval: see ``windows``; when config.json says nothing.
        unrotated_interval: every such layer has no rotary embedding when config.json says nothing;
            None for none.
        adjacent_pairs: rotary embedding rotates adjacent dimensions, not those of the two halves.
        rotated: part of a head that is rotated when config.json says nothing.
        local_theta: base of the wavelengths in layers with a sliding window, whose positions are
            not scaled, when config.json says nothing; 0 for that of the other layers, None where
            all layers rotate alike.
        grows_queries: queries of layers without rotary embedding grow with their position unless
            ``attn_temperature_tuning`` is false.
        query_scalar: scores are divided by the root of ``query_pre_attn_scalar``, by default this
            number; None for the size of a head.
        softcaps: bounds of scores and of logits when config.json says nothing; None where it must
            not say anything.
        latent: attention is over latents of keys and values (MLA).
        experts: which settings and names the experts have; None for a dense model.
        head_dim: when config.json says nothing; None for hidden size over heads.
        rope_theta: when config.json says nothing.
        activation: when config.json says nothing.
        tied: whether embeddings and head share a weight when config.json says nothing.
        qk_norm_flag: whether ``qk_norm`` is used when ``use_qk_norm`` of config.json, which decides
            on it, says nothing; None where it does not.
        dense_size: key of the size of dense feed-forward parts.
        has_sinks: whether each head has an attention sink, a score that no value follows.
        most_context: longest context that is served of a longer one that config.json states, in
            tokens; None for all of it.

    "When config.json says nothing" marks default values.
    """

    biases: Literal["configured", "qkv", "qkv_configured", "all", "none"] = "none"
    mlp_bias: bool = False
    qk_norm: Literal["head", "projection", "unit"] | None = None
    norms: LayerNorms = LayerNorms()
    norm_offset: bool = False
    scaled_embedding: bool = False
    windows: Literal[
        "none", "all", "used", "listed", "listed_before", "interval", "unrotated", "rotated"
    ] = "none"
    window: int | None = None
    full_interval: int = 2
    unrotated_interval: int | None = None
    adjacent_pairs: bool = False
    rotated: float = 1.0
    local_theta: float | None = None
    grows_queries: bool = False
    query_scalar: float | None = None
    softcaps: tuple[float | None, float | None] | None = None
    latent: bool = False
    experts: Experts | None = None
    head_dim: int | None = None
    rope_theta: float = 10_000.0
    activation: str = "silu"
    tied: bool = False
    qk_norm_flag: bool | None = None
    dense_size: str = "intermediate_size"
    has_sinks: bool = False
    most_context: int | None = None


_GEMMA = Family(
    biases="configured",
    norms=_AROUND,
    norm_offset=True,
    scaled_embedding=True,
    windows="interval",
    window=4096,
    query_scalar=256,
    softcaps=(50.0, 30.0),
    head_dim=256,
    activation="gelu_pytorch_tanh",
    tied=True,
)

FAMILIES = {
    "LlamaForCausalLM": Family(biases="configured", mlp_bias=True),
    "MistralForCausalLM": Family(windows="all", window=4096),
    "Qwen2ForCausalLM": Family(biases="qkv", windows="listed", window=4096),
    "Qwen3ForCausalLM": Family(
        biases="configured", qk_norm="head", windows="listed", window=4096, head_dim=128
    ),
    "Phi3ForCausalLM": Family(windows="all"),
    "Gemma2ForCausalLM": _GEMMA,
    "Gemma3ForCausalLM": replace(
        _GEMMA,
        qk_norm="head",
        full_interval=6,
        local_theta=10_000.0,
        softcaps=(None, None),
        rope_theta=1_000_000.0,
    ),
    "MixtralForCausalLM": Family(windows="all", experts="mixtral", rope_theta=1_000_000.0),
    "Qwen3MoeForCausalLM": Family(
        biases="configured", qk_norm="head", windows="used", window=4096, experts="qwen"
    ),
    "Olmo2ForCausalLM": Family(
        biases="configured", qk_norm="projection", norms=_AFTER, rope_theta=500_000.0
    ),
    "Olmo3ForCausalLM": Family(
        biases="configured",
        qk_norm="projection",
        norms=_AFTER,
        windows="interval",
        window=4096,
        full_interval=4,
        local_theta=0.0,
        rope_theta=500_000.0,
    ),
    "SmolLM3ForCausalLM": Family(
        biases="configured",
        mlp_bias=True,
        windows="unrotated",
        unrotated_interval=4,
        rope_theta=2_000_000.0,
        tied=True,
    ),
    "GlmForCausalLM": Family(
        biases="qkv_configured", adjacent_pairs=True, rotated=0.5, head_dim=128
    ),
    "Glm4ForCausalLM": Family(
        biases="qkv_configured", norms=_GLM, adjacent_pairs=True, rotated=0.5, head_dim=128
    ),
    "DeepseekV2ForCausalLM": Family(
        biases="configured", mlp_bias=True, latent=True, experts="deepseek_v2"
    ),
    "DeepseekV3ForCausalLM": Family(biases="configured", latent=True, experts="deepseek_v3"),
    "Qwen2MoeForCausalLM": Family(
        biases="qkv", windows="listed_before", window=4096, experts="qwen_shared"
    ),
    "Glm4MoeForCausalLM": Family(
        biases="qkv_configured",
        qk_norm="head",
        qk_norm_flag=False,
        rotated=0.5,
        experts="deepseek_v3",
    ),
    "Llama4ForCausalLM": Family(
        biases="configured",
        qk_norm="unit",
        qk_norm_flag=True,
        unrotated_interval=4,
        adjacent_pairs=True,
        grows_queries=True,
        windows="rotated",
        window=8192,
        dense_size="intermediate_size_mlp",
        experts="llama4",
        head_dim=128,
        rope_theta=500_000.0,
        # Scout states ten million, but was trained with 256 Ki.
        most_context=1 << 21,
    ),
    "OlmoeForCausalLM": Family(biases="configured", qk_norm="projection", experts="olmoe"),
    "FlexOlmoForCausalLM": Family(
        biases="configured",
        qk_norm="projection",
        norms=_AFTER,
        experts="olmoe",
        rope_theta=500_000.0,
    ),
    "GptOssForCausalLM": Family(
        biases="all",
        windows="interval",
        window=128,
        experts="gpt_oss",
        head_dim=64,
        rope_theta=150_000.0,
        has_sinks=True,
    ),
    "Glm4MoeLiteForCausalLM": Family(biases="configured", latent=True, experts="deepseek_v3"),
    "YoutuForCausalLM": Family(biases="configured", latent=True, tied=True),
}

MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "youtu": "YoutuForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "flex_olmo": "FlexOlmoForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
}
"""Architecture by ``model_type``, for a config.json without ``architectures``."""


def find_architecture(named: Sequence[str], model_type: str) -> str | None:
    """Return the first supported architecture that a config.json names; None for none.

    Args:
        named: its ``architectures``.
        model_type: counts if there are none.
    """
    candidates = named or (MODEL_TYPES.get(model_type),)
    return next((name for name in candidates if name in FAMILIES), None)
