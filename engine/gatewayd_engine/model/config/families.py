"""Supported architectures and their differences from Llama."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Family:
    """Differences from Llama fixed by the architecture; the rest is read from config.json.

    Attributes:
        biases: which attention projections have one: all or none as ``attention_bias`` says,
            query, key and value only, or none.
        mlp_bias: whether config.json may ask for biases in the feed-forward part.
        qk_norm: queries and keys are normalised per head before rotary.
        post_norms: the outputs of attention and feed-forward are normalised too.
        norm_offset: norm weights are stored as their difference from one.
        scaled_embedding: embeddings are multiplied by the root of the hidden size.
        windows: which layers have a sliding window: none, all where ``sliding_window`` is set,
            all where ``use_sliding_window`` is, those that ``layer_types`` or
            ``max_window_layers`` name, every other one.
        window: the window when config.json says nothing; None for none.
        experts: naming scheme of the experts' weights; None for a dense model.
        head_dim: when config.json says nothing; None for hidden size over heads.
        rope_theta: when config.json says nothing.
        activation: when config.json says nothing.
        tied: whether embeddings and head share a weight when config.json says nothing.

    "When config.json says nothing" marks default values.
    """

    biases: Literal["configured", "qkv", "none"] = "none"
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    norm_offset: bool = False
    scaled_embedding: bool = False
    windows: Literal["none", "all", "used", "listed", "alternating"] = "none"
    window: int | None = None
    experts: Literal["mixtral", "qwen"] | None = None
    head_dim: int | None = None
    rope_theta: float = 10_000.0
    activation: str = "silu"
    tied: bool = False


FAMILIES = {
    "LlamaForCausalLM": Family(biases="configured", mlp_bias=True),
    "MistralForCausalLM": Family(windows="all", window=4096),
    "Qwen2ForCausalLM": Family(biases="qkv", windows="listed", window=4096),
    "Qwen3ForCausalLM": Family(
        biases="configured", qk_norm=True, windows="listed", window=4096, head_dim=128
    ),
    "Phi3ForCausalLM": Family(windows="all"),
    "Gemma2ForCausalLM": Family(
        biases="configured",
        post_norms=True,
        norm_offset=True,
        scaled_embedding=True,
        windows="alternating",
        window=4096,
        head_dim=256,
        activation="gelu_pytorch_tanh",
        tied=True,
    ),
    "MixtralForCausalLM": Family(windows="all", experts="mixtral", rope_theta=1_000_000.0),
    "Qwen3MoeForCausalLM": Family(
        biases="configured", qk_norm=True, windows="used", window=4096, experts="qwen"
    ),
}

MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
"""Architecture by ``model_type``, for a config.json without ``architectures``."""
