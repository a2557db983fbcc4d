"""What llama.cpp's converter says of the tiny checkpoints, beside what all architectures have."""

from __future__ import annotations

from typing import Any

from tests.engine.conftest import GROUPED, YARN_ROPE
from tests.engine.gguf_latents import OLD

TOKENS = ["<unk>", "</s>", "a", "b", "ab"]
TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [2, 3, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GLM_MOE = {
    "glm4moe.rope.dimension_count": 12,
    "glm4moe.expert_weights_norm": True,
    "glm4moe.expert_weights_scale": 1.5,
    "glm4moe.expert_gating_func": 2,
}
GPT_OSS = {
    "gpt-oss.attention.sliding_window": 20,
    "gpt-oss.rope.scaling.type": "yarn",
    "gpt-oss.rope.scaling.factor": 4.0,
    "gpt-oss.rope.scaling.original_context_length": 256,
}
DEEPSEEK2 = {"deepseek2.expert_gating_func": 1, "deepseek2.expert_weights_scale": 1.0}
DEEPSEEK3 = {
    "deepseek2.expert_gating_func": 2,
    "deepseek2.expert_weights_norm": True,
    "deepseek2.expert_weights_scale": 2.5,
}
FAMILIES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", "llama", {}, {}),
    "llama_biases": ("llama_biases", "llama", {}, {}),
    "mistral": ("mistral", "llama", {}, {"llama.attention.sliding_window": 24}),
    "mixtral": ("mixtral", "llama", {}, {}),
    "qwen2": ("qwen2_unbounded", "qwen2", {}, {}),
    "qwen3": ("qwen3", "qwen3", {}, {}),
    "qwen3_moe": ("qwen3_moe", "qwen3moe", {"mlp_only_layers": []}, {}),
    "qwen2_moe": ("qwen2_moe", "qwen2moe", {"mlp_only_layers": []}, {}),
    "olmoe": ("olmoe", "olmoe", {}, {}),
    "glm4_moe": ("glm4_moe", "glm4moe", {"num_hidden_layers": 3}, GLM_MOE),
    "glm4_moe_biases": (
        "glm4_moe_biases",
        "glm4moe",
        {"num_nextn_predict_layers": 0},
        {
            **GLM_MOE,
            "glm4moe.rope.dimension_count": 8,
            "glm4moe.expert_weights_norm": False,
        },
    ),
    "deepseek_v2": ("deepseek_v2", "deepseek2", {}, DEEPSEEK2),
    "deepseek_v2_grouped": (
        "deepseek_v2_yarn",
        "deepseek2",
        {
            **GROUPED,
            "routed_scaling_factor": 2.5,
            "topk_method": "group_limited_greedy",
            "mlp_bias": False,
            "first_k_dense_replace": 1,
            "rope_parameters": {**YARN_ROPE, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
        {
            "deepseek2.expert_weights_scale": 2.5,
            "deepseek2.rope.scaling.type": "yarn",
            "deepseek2.rope.scaling.factor": 4.0,
            "deepseek2.rope.scaling.original_context_length": 256,
            "deepseek2.rope.scaling.yarn_log_multiplier": 0.0707,
        },
    ),
    "deepseek_v2_old": ("deepseek_v2", "deepseek2", {}, {**DEEPSEEK2, **OLD}),
    "deepseek_v3": (
        "deepseek_v3",
        "deepseek2",
        {**GROUPED, "routed_scaling_factor": 2.5},
        DEEPSEEK3,
    ),
    "youtu": ("youtu", "deepseek2", {}, {}),
    "gpt_oss": ("gpt_oss", "gpt-oss", {"swiglu_limit": 7.0}, GPT_OSS),
    "gpt_oss_unbiased": (
        "gpt_oss_unbiased",
        "gpt-oss",
        {"swiglu_limit": 7.0, "swiglu_alpha": 1.702, "layer_types": None, "sliding_window": 20},
        GPT_OSS,
    ),
    "llama4": ("llama4", "llama4", {"floor_scale": 8192}, {}),
    "gemma2": (
        "gemma2",
        "gemma2",
        {"query_pre_attn_scalar": 24, "sliding_window": 32},
        {"gemma2.attention.sliding_window": 32},
    ),
    "gemma3": (
        "gemma3_scaled",
        "gemma3",
        {
            "num_hidden_layers": 3,
            "query_pre_attn_scalar": 16,
            "layer_types": None,
            "sliding_window_pattern": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        {
            "gemma3.attention.sliding_window": 16,
            "gemma3.rope.freq_base": 1e6,
            "gemma3.rope.scaling.type": "linear",
            "gemma3.rope.scaling.factor": 8.0,
        },
    ),
    "olmo2": ("olmo2", "olmo2", {}, {}),
    "olmo3": (
        "olmo3",
        "olmo2",
        {
            "rope_parameters": {
                "full_attention": {**YARN_ROPE, "attention_factor": 1.25},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
            "layer_types": ["full_attention", "sliding_attention"],
        },
        {
            "olmo2.attention.sliding_window": 20,
            "olmo2.attention.sliding_window_pattern": [False, True],
            "olmo2.rope.scaling.type": "yarn",
            "olmo2.rope.scaling.factor": 4.0,
            "olmo2.rope.scaling.original_context_length": 256,
            "olmo2.rope.scaling.yarn_attn_factor": 1.25,
        },
    ),
    "smollm3": (
        "smollm3",
        "smollm3",
        {"no_rope_layer_interval": 4, "num_hidden_layers": 4, "tie_word_embeddings": True},
        {},
    ),
    "glm4": ("glm4_biases", "glm4", {}, {"glm4.rope.dimension_count": 8}),
    "glm4_whole_heads": (
        "glm4",
        "glm4",
        {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1.0}},
        {"glm4.rope.dimension_count": 32},
    ),
    "phi3": (
        "phi3",
        "phi3",
        {"sliding_window": 20},
        {"phi3.attention.sliding_window": 20, "phi3.rope.dimension_count": 12},
    ),
    "linear": (
        "llama",
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
    ),
    "yarn": (
        "llama_yarn",
        "llama",
        {},
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 256,
        },
    ),
}
