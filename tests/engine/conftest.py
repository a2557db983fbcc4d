"""Fixtures: tiny random checkpoints of every architecture, written by transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "eos_token_id": 1,
    "bos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}
BY_LAYER_ROPE = {
    "full_attention": YARN_ROPE,
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0 + 0.02 * i for i in range(6)],
    "long_factor": [1.5 + 0.5 * i for i in range(6)],
}
MOE = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "num_hidden_layers": 4,
}
GROUPED_MOE = {
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
}
GPT_OSS = {
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "head_dim": 24,
    "num_hidden_layers": 4,
    "rope_parameters": {**YARN_ROPE, "truncate": False},
    "swiglu_limit": 1.5,
}

LATENT = {
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "num_key_value_heads": 4,
}
DEEPSEEK = {
    **LATENT,
    "first_k_dense_replace": 1,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_group": 1,
    "topk_group": 1,
}
GROUPED = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7}
LLAMA4 = {
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "intermediate_size_mlp": 128,
    "head_dim": 16,
    "num_hidden_layers": 5,
    "floor_scale": 16,
}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama3": ("LlamaConfig", {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", {"sliding_window": 24}),
    "qwen2": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 24, "tie_word_embeddings": True}),
    "phi3": (
        "Phi3Config",
        {
            "sliding_window": 40,
            "rope_parameters": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.75},
        },
    ),
    "gemma2": (
        "Gemma2Config",
        {
            "head_dim": 24,
            "sliding_window": 16,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
            "num_hidden_layers": 4,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "head_dim": 32,
            "sliding_window": 16,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 20,
            "num_hidden_layers": 4,
            "tie_word_embeddings": True,
        },
    ),
    "olmo2": ("Olmo2Config", {}),
    "olmo3": (
        "Olmo3Config",
        {"num_hidden_layers": 4, "sliding_window": 20, "rope_parameters": BY_LAYER_ROPE},
    ),
    "smollm3": ("SmolLM3Config", {"no_rope_layer_interval": 2, "num_hidden_layers": 4}),
    "glm": ("GlmConfig", {"head_dim": 16, "attention_bias": True}),
    "glm4": ("Glm4Config", {"head_dim": 32, "attention_bias": False}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {**MOE, "head_dim": 24, "norm_topk_prob": True, "mlp_only_layers": [1]},
    ),
    "deepseek_v2": ("DeepseekV2Config", {**DEEPSEEK, "q_lora_rank": None}),
    "deepseek_v3": ("DeepseekV3Config", DEEPSEEK),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {**MOE, "shared_expert_intermediate_size": 80, "mlp_only_layers": [1]},
    ),
    "glm4_moe": ("Glm4MoeConfig", {**GROUPED_MOE, "head_dim": 24, "use_qk_norm": True}),
    "gpt_oss": ("GptOssConfig", {**GPT_OSS, "sliding_window": 20}),
    "llama4": ("Llama4TextConfig", {**LLAMA4, "interleave_moe_layer_step": 2}),
    "olmoe": ("OlmoeConfig", {"num_experts": 6, "num_experts_per_tok": 2}),
    "flex_olmo": (
        "FlexOlmoConfig",
        {"num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": True},
    ),
}
"""A configuration class of transformers and what differs from ``SIZES``, one per family."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **ARCHITECTURES,
    "llama_linear": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}},
    ),
    "llama_dynamic": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 4.0}},
    ),
    "llama_yarn": ("LlamaConfig", {"rope_parameters": YARN_ROPE}),
    "llama_biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama_one_kv_head": ("LlamaConfig", {"num_key_value_heads": 1}),
    "llama_exact_gelu": ("LlamaConfig", {"hidden_act": "gelu"}),
    "mistral_unbounded": ("MistralConfig", {"sliding_window": None}),
    "qwen2_unbounded": ("Qwen2Config", {}),
    "qwen3_biases": ("Qwen3Config", {"head_dim": 16, "attention_bias": True}),
    "phi3_longrope": (
        "Phi3Config",
        {
            "original_max_position_embeddings": 256,
            "rope_parameters": {**LONGROPE, "partial_rotary_factor": 0.75},
        },
    ),
    "gemma2_uncapped": (
        "Gemma2Config",
        {"head_dim": 16, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3_scaled": (
        "Gemma3TextConfig",
        {
            "head_dim": 16,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "sliding_window": 16,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
            "final_logit_softcapping": 10.0,
        },
    ),
    "olmo3_by_default": ("Olmo3Config", {"num_hidden_layers": 5}),
    "smollm3_window": (
        "SmolLM3Config",
        {
            "no_rope_layers": [1, 0, 0],
            "use_sliding_window": True,
            "sliding_window": 16,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "glm4_biases": ("Glm4Config", {"head_dim": 16, "attention_bias": True}),
    "mixtral_window": ("MixtralConfig", {"num_local_experts": 4, "sliding_window": 16}),
    "deepseek_v2_yarn": (
        "DeepseekV2Config",
        {
            **DEEPSEEK,
            "rope_parameters": {**YARN_ROPE, "mscale": 0.7, "mscale_all_dim": 0.9},
            "mlp_bias": True,
            "first_k_dense_replace": 3,
        },
    ),
    "deepseek_v2_biases": (
        "DeepseekV2Config",
        {
            **DEEPSEEK,
            **GROUPED,
            "q_lora_rank": None,
            "attention_bias": True,
            "topk_method": "group_limited_greedy",
        },
    ),
    "deepseek_v3_biases": (
        "DeepseekV3Config",
        {
            **DEEPSEEK,
            **GROUPED,
            "attention_bias": True,
            "rope_interleave": False,
            "rms_norm_eps": 0.01,
        },
    ),
    "llama4_biases": (
        "Llama4TextConfig",
        {
            **LLAMA4,
            "num_experts_per_tok": 1,
            "moe_layers": [0, 3],
            "attention_bias": True,
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
        },
    ),
    "llama4_chunks": (
        "Llama4TextConfig",
        {**LLAMA4, "interleave_moe_layer_step": 2, "attention_chunk_size": 16},
    ),
    "llama4_dense": (
        "Llama4TextConfig",
        {
            **LLAMA4,
            "moe_layers": [],
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
            "attention_chunk_size": 24,
        },
    ),
    "glm4_moe_biases": (
        "Glm4MoeConfig",
        {
            **GROUPED_MOE,
            "head_dim": 16,
            "attention_bias": True,
            "first_k_dense_replace": 0,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "n_shared_experts": 1,
        },
    ),
    "gpt_oss_unbiased": (
        "GptOssConfig",
        {
            **GPT_OSS,
            "attention_bias": False,
            "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
            "sliding_window": 9,
            "swiglu_alpha": 1.2,
        },
    ),
    "qwen2_moe_windows": (
        "Qwen2MoeConfig",
        {
            **MOE,
            "shared_expert_intermediate_size": 40,
            "norm_topk_prob": True,
            "qkv_bias": False,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 3,
        },
    ),
    "deepseek_v3_direct": (
        "DeepseekV3Config",
        {
            **DEEPSEEK,
            "q_lora_rank": None,
            "rope_interleave": False,
            "rope_parameters": {**YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "glm4_moe_lite": (
        "Glm4MoeLiteConfig",
        {**DEEPSEEK, **GROUPED, "mlp_layer_types": ["dense", "sparse", "dense"]},
    ),
    # transformers zeroes the embedding of a padding token when it loads a tied one.
    "youtu": ("YoutuConfig", {**LATENT, "tie_word_embeddings": True, "pad_token_id": None}),
    "qwen3_moe_sparse_step": (
        "Qwen3MoeConfig",
        {**MOE, "decoder_sparse_step": 2, "use_sliding_window": True, "sliding_window": 16},
    ),
}
"""``ARCHITECTURES`` and the options of each family."""


def write_checkpoint(folder: Path, name: str, seed: int = 0, **changes: Any) -> Path:
    """Write a random checkpoint of a variant, float32, in many shards unless told otherwise.

    Weights are drawn wide, norms and biases too, so that nothing is close to a no-op and the
    best logits stand apart.
    """
    import torch
    import transformers

    max_shard_size = changes.pop("max_shard_size", "60KB")
    kind, differences = VARIANTS[name]
    config = getattr(transformers, kind)(**{**SIZES, **differences, **changes})
    generator = torch.Generator().manual_seed(seed)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        corrections = ((k, b) for k, b in model.named_buffers() if k.endswith("correction_bias"))
        for key, parameter in (*model.named_parameters(), *corrections):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                parameter.copy_(noise * 1.5 * parameter.shape[-1] ** -0.5)
            elif key.endswith("bias") or kind.startswith("Gemma"):
                parameter.copy_(noise * 0.3)
            else:
                parameter.copy_(1 + noise * 0.3)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """What is drawn without a generator is the same whatever ran before."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny checkpoint by the name of its variant, made once per session."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = write_checkpoint(tmp_path_factory.mktemp(name), name)
        return made[name]

    return of


@pytest.fixture(scope="session")
def make_checkpoint() -> Callable[..., Path]:
    """``write_checkpoint``, for a checkpoint with changes."""
    return write_checkpoint


@pytest.fixture(params=sorted(ARCHITECTURES))
def architecture(request: pytest.FixtureRequest) -> str:
    """Runs a test once for each supported architecture."""
    return str(request.param)


@pytest.fixture(params=sorted(VARIANTS))
def variant(request: pytest.FixtureRequest) -> str:
    """Runs a test once for each architecture and for each option of it."""
    return str(request.param)
